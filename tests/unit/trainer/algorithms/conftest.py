"""The input that the golden values were computed on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch


@dataclass(frozen=True)
class Standard:
    """Five rows of twenty tokens, log-probs, masks and advantages at random. `extra` is what a trainer passes too."""

    logprob: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    expert: torch.Tensor

    def extra(self, rows: slice = slice(None), step: int = 0) -> dict[str, Any]:
        return {"ref_logprob": self.ref[rows], "expert_mask": self.expert[rows], "step": step}

    def double(self) -> "Standard":
        return Standard(*(t.double() if t.is_floating_point() else t for t in vars(self).values()))


def _drawn(seed: int = 42, rows: int = 5, length: int = 20, empty: Sequence[int] = ()) -> Standard:
    torch.manual_seed(seed)
    shape = (rows, length)
    logprob, old, ref = (2 * torch.rand(shape) - 1 for _ in range(3))
    mask = torch.rand(shape) > 0.5
    advantages = 2 * torch.rand(shape) - 1
    mask[list(empty)] = False
    return Standard(logprob, old, ref, mask, advantages, torch.rand(rows) > 0.5)


@pytest.fixture
def standard() -> Standard:
    return _drawn()


@pytest.fixture
def drawn() -> Callable[..., Standard]:
    """Inputs of another seed and shape; rows in `empty` have no token that counts."""
    return _drawn
