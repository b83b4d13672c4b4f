"""What a policy loss sees of a batch, and how it measures it."""

from dataclasses import dataclass, replace

import torch

from services.trainer.algorithms.aggregation import aggregate, masked, row_mean
from services.trainer.algorithms.totals import Totals

MAX_LOG_RATIO = 20.0
Metrics = dict[str, torch.Tensor]
Result = tuple[torch.Tensor, Metrics]


@dataclass(frozen=True)
class Inputs:
    """Tensors of `B` padded rows of `T` response tokens; `logprob` is 0 where `mask` is.

    `mask` is of `logprob`'s type. `old_logprob` is the sampler's, `proximal_logprob` the trainer's at the start of the
    batch, `ref_logprob` the reference policy's. `weights` multiply the values of tokens that make the loss.
    `expert_mask` `B` marks rows of expert data, `step` counts from 1. `has_totals`: whether the totals are the
    caller's, or this batch's own.
    """

    logprob: torch.Tensor
    old_logprob: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    proximal_logprob: torch.Tensor
    ref_logprob: torch.Tensor
    expert_mask: torch.Tensor
    totals: Totals
    has_totals: bool
    step: float | None = None
    weights: torch.Tensor | None = None

    def aggregate(self, values: torch.Tensor, mode: str) -> torch.Tensor:
        """A share of the loss; tokens of weight 0 stay in the divisor."""
        return aggregate(values if self.weights is None else values * self.weights, self.mask, mode, self.totals)

    def token_mean(self, values: torch.Tensor) -> torch.Tensor:
        """A share of the mean over all tokens of `values` `B x T`."""
        return aggregate(values.to(self.logprob.dtype), self.mask, "token-mean", self.totals)

    def sequence_mean(self, values: torch.Tensor) -> torch.Tensor:
        """A share of the mean over all rows of `values` `B`."""
        return values.sum() / max(self.totals.sequences, 1)

    def row_mean(self, values: torch.Tensor) -> torch.Tensor:
        return row_mean(values, self.mask)

    def row_sum(self, values: torch.Tensor) -> torch.Tensor:
        return (masked(values, self.mask) * self.mask).sum(-1)

    def rows(self, chosen: torch.Tensor, totals: Totals) -> "Inputs":
        """The rows where `chosen` `B` is true, to be measured by totals of their own."""
        return replace(
            self,
            logprob=self.logprob[chosen],
            old_logprob=self.old_logprob[chosen],
            mask=self.mask[chosen],
            advantages=self.advantages[chosen],
            proximal_logprob=self.proximal_logprob[chosen],
            ref_logprob=self.ref_logprob[chosen],
            expert_mask=self.expert_mask[chosen],
            totals=totals,
            weights=None if self.weights is None else self.weights[chosen],
        )


def ratio_of(logprob: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """`exp(logprob - base)`, its exponent kept within 20 of 0."""
    return torch.exp((logprob - base).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
