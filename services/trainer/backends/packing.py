"""A batch as veRL's engine takes it: jagged nested tensors, no padding between sequences."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.trainer.backends.balance import spread, workload
from services.trainer.backends.port import Floats, Sequence

_OPTIONAL = {
    "reference_logprobs": "ref_log_prob",
    "proximal_logprobs": "proximal_log_prob",
    "weights": "rollout_is_weights",
    "values": "values",
    "returns": "returns",
}


@dataclass(frozen=True)
class Layout:
    """How a batch is parted: over `ranks`, and on each into micro-batches.

    A micro-batch has at most `token_budget` tokens, or, where it is set, `micro_batch_size` sequences. `together`
    sequences that follow each other are never parted. Where it `is_balanced`, ranks get sequences by their lengths, so
    that all have about as much to compute; otherwise in their order.
    """

    ranks: int
    token_budget: int
    micro_batch_size: int | None = None
    together: int = 1
    is_balanced: bool = False

    def options(self, sequences: Rows[Sequence]) -> dict[str, Any]:
        """veRL's options for these sequences. One that is longer than the budget has a micro-batch of its own."""
        if self.micro_batch_size is not None:
            size = self._size(len(sequences)) // self.together
            return {
                "use_dynamic_bsz": False,
                "micro_batch_size_per_gpu": size,
                "force_group_size": self.together,
            }
        lengths = [len(sequence.tokens) for sequence in sequences]
        longest = max(sum(lengths[at : at + self.together]) for at in range(0, len(lengths), self.together))
        return {
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": max(self.token_budget, longest),
            "force_group_size": self.together,
        }

    def places(self, sequences: Rows[Sequence]) -> list[int | None]:
        """Which sequence stands where, by its number; each rank has an equal part, in whole micro-batches.

        None stands for a silent copy, of which there are as many as that takes.
        """
        if len(sequences) % self.together:
            raise ValueError(f"{len(sequences)} sequences cannot be taken {self.together} at a time")
        step = self.ranks * (self._size(len(sequences)) if self.micro_batch_size is not None else self.together)
        missing = -len(sequences) % step
        places = [*range(len(sequences)), *([None] * missing)]
        if not self.is_balanced or self.ranks == 1:
            return places
        units = [places[at : at + self.together] for at in range(0, len(places), self.together)]
        lengths = [len(sequence.tokens) for sequence in sequences]
        works = [sum(workload(min(lengths) if place is None else lengths[place]) for place in unit) for unit in units]
        return [place for unit in spread(works, self.ranks) for place in units[unit]]

    def found_at(self, sequences: Rows[Sequence]) -> list[int]:
        """Where each sequence stands among those that are filled up."""
        at = {place: number for number, place in enumerate(self.places(sequences)) if place is not None}
        return [at[place] for place in range(len(sequences))]

    def filled(self, sequences: Rows[Sequence]) -> list[Sequence]:
        """The sequences, and silent copies, at their places."""
        shortest = min(sequences, key=lambda sequence: len(sequence.tokens))
        return [_silent(shortest) if place is None else sequences[place] for place in self.places(sequences)]

    def _size(self, sequences: int) -> int:
        """Sequences of a micro-batch of fixed size: as even as they can be, at most `micro_batch_size`."""
        assert self.micro_batch_size is not None
        most = max(1, self.micro_batch_size // self.together)
        of_a_rank = -(-sequences // (self.ranks * self.together))
        return self.together * -(-of_a_rank // -(-of_a_rank // most))


def pack(sequences: Rows[Sequence], layout: Layout, options: dict[str, Any]) -> Any:
    """The tensor dictionary of one batch, with `totals_*`: what the loss is normalised over, the silent rows apart."""
    from verl.utils import tensordict_utils

    filled = layout.filled(sequences)
    tensors = {
        "input_ids": _jagged([sequence.tokens.astype(np.int64) for sequence in filled]),
        "position_ids": _jagged([np.arange(len(sequence.tokens)) for sequence in filled]),
        "loss_mask": _jagged([_whole_mask(sequence) for sequence in filled]),
        "prompts": _jagged([sequence.tokens[: sequence.prompt_length].astype(np.int64) for sequence in filled]),
        "responses": _jagged([sequence.tokens[sequence.prompt_length :].astype(np.int64) for sequence in filled]),
        "response_mask": _jagged([sequence.action_mask.astype(np.float32) for sequence in filled]),
        "old_log_probs": _jagged([sequence.old_logprobs for sequence in filled]),
        "advantages": _jagged([sequence.advantages for sequence in filled]),
        "temperature": torch.tensor([sequence.temperature for sequence in filled], dtype=torch.float32),
        "rewards": torch.tensor([sequence.reward for sequence in filled], dtype=torch.float32),
        "groups": torch.tensor([sequence.group for sequence in filled]),
        "expert_mask": torch.tensor([sequence.is_expert for sequence in filled]),
        **{
            name: _jagged([getattr(sequence, field) for sequence in filled])
            for field, name in _OPTIONAL.items()
            if all(getattr(sequence, field) is not None for sequence in filled)
        },
    }
    plain = {
        "mini_batch_size": len(filled),
        "epochs": 1,
        "global_batch_size": len(sequences),
        "use_fused_kernels": False,
        "pad_token_id": 0,
        **_totals(sequences),
        **layout.options(filled),
        **options,
    }
    return tensordict_utils.get_tensordict(tensors, non_tensor_dict=plain)


def _totals(sequences: Rows[Sequence]) -> dict[str, int]:
    experts = [sequence for sequence in sequences if sequence.is_expert]
    return {
        "totals_tokens": _actions(sequences),
        "totals_sequences": len(sequences),
        "totals_length": max(sequence.response_length for sequence in sequences),
        "totals_expert_tokens": _actions(experts),
        "totals_expert_sequences": len(experts),
    }


def _actions(sequences: Rows[Sequence]) -> int:
    return sum(int(sequence.action_mask.sum()) for sequence in sequences)


def _silent(sequence: Sequence) -> Sequence:
    """A copy that carries no loss."""
    return replace(
        sequence,
        action_mask=np.zeros_like(sequence.action_mask),
        advantages=np.zeros_like(sequence.advantages),
        reward=0.0,
        group=-1,
        is_expert=False,
    )


def _whole_mask(sequence: Sequence) -> Floats:
    prompt = np.zeros(sequence.prompt_length, dtype=np.float32)
    return np.concatenate([prompt, sequence.action_mask.astype(np.float32)])


def _jagged(arrays: list[npt.NDArray[Any]]) -> torch.Tensor:
    # an array from the bus is read-only, and torch wants its own
    return torch.nested.as_nested_tensor([torch.tensor(array) for array in arrays], layout=torch.jagged)
