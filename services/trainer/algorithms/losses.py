"""The policy losses by name, and the one form in which all of them are called.

A loss over several micro-batches and ranks is the sum of its parts: each part divides by the totals of the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from services.config.algorithms.loss_arguments import LossArguments
from services.config.algorithms.parts import POLICY_LOSSES, arguments
from services.trainer.algorithms import clipped, corrected, mixed, opmd, preference, rec, supervised, weighted
from services.trainer.algorithms.aggregation import masked
from services.trainer.algorithms.inputs import Inputs, Result
from services.trainer.algorithms.totals import Totals

LOSSES: dict[str, Callable[[Inputs, Any], Result]] = {
    "ppo": clipped.ppo,
    "gspo": clipped.gspo,
    "sppo": clipped.sppo,
    "cispo": weighted.cispo,
    "sapo": weighted.sapo,
    "topr": weighted.topr,
    "importance_sampling": weighted.importance_sampling,
    "reinforce": weighted.reinforce,
    "opmd": opmd.opmd,
    "pairwise_opmd": opmd.pairwise_opmd,
    "rec": rec.rec,
    "dpo": preference.dpo,
    "sft": supervised.sft,
    "sft_is": supervised.sft_is,
    "sft_phi": supervised.sft_phi,
    "mix": mixed.mix,
    "mix_chord": mixed.mix_chord,
    "decoupled_ppo": corrected.decoupled_ppo,
    "tis": corrected.tis,
    "icepop": corrected.icepop,
    "geo_mask": corrected.geo_mask,
    "dppo_tv": corrected.dppo_tv,
}
EXTRAS = frozenset({"ref_logprob", "expert_mask", "step", "proximal_logprob"})
OPTIONAL = frozenset({"step", "proximal_logprob"})
VERL_NAMES = {
    "log_prob": "logprob",
    "old_log_probs": "old_logprob",
    "response_mask": "action_mask",
    "ref_log_prob": "ref_logprob",
    "rollout_is_weights": "weights",
}


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss with its arguments."""

    name: str
    arguments: LossArguments

    @property
    def needs(self) -> frozenset[str]:
        """What it reads of `ref_logprob`, `expert_mask`, `step` and `proximal_logprob`."""
        return POLICY_LOSSES[self.name].reads & EXTRAS

    @property
    def is_paired(self) -> bool:
        """Whether rows alternate between a chosen answer and the rejected one."""
        return POLICY_LOSSES[self.name].is_paired

    def __call__(
        self,
        logprob: torch.Tensor | None = None,
        old_logprob: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
        advantages: torch.Tensor | None = None,
        *,
        totals: Totals | None = None,
        **extra: Any,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss, a scalar, and its metrics.

        Tensors are `B x T`: padded responses, `action_mask` 1 on the tokens that count. `extra` may hold
        `ref_logprob` and `proximal_logprob` `B x T` (the trainer's own at the start of the batch; those of this call
        where absent), `weights` `B x T` that the values of tokens are multiplied by, `expert_mask` `B` and `step`;
        veRL's names of these tensors do as well, and anything else is passed over. With `totals` of the whole optimizer
        batch the loss and every metric are this call's share: the sum over all calls is the value on the whole batch.

        Raises:
            ValueError: a tensor that the loss reads is missing.
        """
        given = {"logprob": logprob, "old_logprob": old_logprob, "action_mask": action_mask, "advantages": advantages}
        given |= {VERL_NAMES.get(name, name): value for name, value in extra.items()}
        reads = (POLICY_LOSSES[self.name].reads - OPTIONAL) | {"logprob", "action_mask"}
        missing = sorted(name for name in reads if given.get(name) is None)
        if missing:
            raise ValueError(f"the policy loss {self.name} reads {', '.join(missing)}: pass it")
        loss, metrics = LOSSES[self.name](_inputs(given, totals), self.arguments)
        numbers = torch.stack([value.detach().to(loss.dtype) for value in metrics.values()]).tolist()
        return loss, dict(zip(metrics, numbers, strict=True))


def policy_loss(name: str, **args: object) -> PolicyLoss:
    """The policy loss of that name; `args` replace single defaults. Trinity-RFT's `backend` is passed over.

    Raises:
        ValueError: there is none of that name, or it does not take these arguments.
    """
    checked = arguments("policy_loss_fn", name, {key: value for key, value in args.items() if key != "backend"})
    assert isinstance(checked, LossArguments)
    return PolicyLoss(name, checked)


def _inputs(given: dict[str, Any], totals: Totals | None) -> Inputs:
    """The tensors of a call; zeros stand for what the loss does not read."""
    mask = given["action_mask"].to(given["logprob"].dtype)
    logprob = masked(given["logprob"], mask)
    zeros = torch.zeros_like(logprob)
    tensors = {name: given.get(name) for name in ("old_logprob", "advantages", "ref_logprob", "proximal_logprob")}
    expert = given.get("expert_mask")
    expert_mask = torch.zeros_like(zeros[:, 0], dtype=torch.bool) if expert is None else expert.bool()
    proximal = logprob if tensors["proximal_logprob"] is None else tensors["proximal_logprob"]
    return Inputs(
        logprob=logprob,
        old_logprob=zeros if tensors["old_logprob"] is None else tensors["old_logprob"],
        mask=mask,
        advantages=zeros if tensors["advantages"] is None else tensors["advantages"],
        proximal_logprob=proximal.detach(),
        ref_logprob=zeros if tensors["ref_logprob"] is None else tensors["ref_logprob"],
        expert_mask=expert_mask,
        totals=Totals.of(mask, expert_mask) if totals is None else totals,
        has_totals=totals is not None,
        step=_step(given.get("step")),
        weights=None if given.get("weights") is None else masked(given["weights"], mask),
    )


def _step(step: Any) -> float | None:
    """The step, also where each row brings it along."""
    return float(step.max()) if isinstance(step, torch.Tensor) else step
