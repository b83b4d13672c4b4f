"""How much a whole optimizer batch holds, whatever the parts that it is computed in.

A part's sum over the whole batch's count is its share of the mean: the shares of all micro-batches and ranks add up.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Totals:
    """Counts over all micro-batches and ranks.

    `tokens`: sum of the action mask; `sequences`: rows; `length`: the longest response, in tokens, which
    `seq-mean-token-sum-norm` divides by; the last two: the share of expert rows in the first two.
    """

    tokens: float
    sequences: float
    length: float
    expert_tokens: float = 0
    expert_sequences: float = 0

    @classmethod
    def of(cls, mask: torch.Tensor, expert_mask: torch.Tensor | None = None) -> "Totals":
        """The totals of one padded batch: `mask` `B x T`, `expert_mask` `B`."""
        expert = torch.zeros(len(mask), dtype=torch.bool) if expert_mask is None else expert_mask.bool()
        return cls(
            tokens=float(mask.sum()),
            sequences=len(mask),
            length=mask.shape[-1],
            expert_tokens=float(mask[expert].sum()),
            expert_sequences=int(expert.sum()),
        )

    @property
    def expert(self) -> "Totals":
        """The totals of the expert rows alone."""
        return Totals(self.expert_tokens, self.expert_sequences, self.length, self.expert_tokens, self.expert_sequences)

    @property
    def usual(self) -> "Totals":
        """The totals of all rows but the expert ones."""
        return Totals(self.tokens - self.expert_tokens, self.sequences - self.expert_sequences, self.length)
