"""KL terms: how far the policy is from the reference, token by token, and the controller of their weight."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.config.algorithms.parts import KlArguments, arguments

MAX_ERROR = 0.2
MAX_RATIO = 2.0


@dataclass(frozen=True)
class Kl:
    """A KL estimate with its arguments; `arguments.kl_coef` is left to the caller to multiply by."""

    name: str
    arguments: KlArguments

    def __call__(
        self, logprob: torch.Tensor, ref_logprob: torch.Tensor, old_logprob: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The estimate of each token, `B x T`; `old_logprob` is the sampler's, which `corrected_k3` alone reads."""
        return ESTIMATES[self.name](logprob, ref_logprob, old_logprob)


def kl(name: str, **args: object) -> Kl:
    """The KL estimate of that name; source of k1, k2, k3: http://joschu.net/blog/kl-approx.html.

    Raises:
        ValueError: there is none of that name, or it does not take these arguments.
    """
    checked = arguments("kl_loss_fn", name, args)
    assert isinstance(checked, KlArguments)
    return Kl(name, checked)


def adapted_kl_coef(coef: float, current_kl: float, target_kl: float, horizon: float, batch_size: int) -> float:
    """The coefficient after a batch of `batch_size` rows whose mean KL was `current_kl`.

    `coef * (1 + clip(current / target - 1, -0.2, 0.2) * batch_size / horizon)`. Source: arXiv 1909.08593, section 2.2.
    """
    error = min(max(current_kl / target_kl - 1, -MAX_ERROR), MAX_ERROR)
    return coef * (1 + error * batch_size / horizon)


Estimate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def _none(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(logprob)


def _k1(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return logprob - ref


def _k2(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return (logprob - ref).square() / 2


def _k3(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    """`e^d - 1 - d` with `d = ref - logprob`."""
    return torch.expm1(ref - logprob) - (ref - logprob)


def _low_var_kl(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    """k3 with its exponent kept within 20 of 0 and its result within 10."""
    gap = (ref - logprob).clamp(-20, 20)
    return (torch.expm1(gap) - gap).clamp(-10, 10)


def _abs(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return (logprob - ref).abs()


def _corrected_k3(logprob: torch.Tensor, ref: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    """k3 weighed by the ratio to the sampler, at most 2; k3 itself where the sampler is not known."""
    estimate = _k3(logprob, ref, old)
    return estimate if old is None else (logprob - old).clamp(max=math.log(MAX_RATIO)).exp() * estimate


ESTIMATES: dict[str, Estimate] = {
    "none": _none,
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "low_var_kl": _low_var_kl,
    "abs": _abs,
    "corrected_k3": _corrected_k3,
}
