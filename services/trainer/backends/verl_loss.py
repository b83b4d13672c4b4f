"""The losses as veRL's engine calls them: on one micro-batch of one rank, as its share of the whole batch.

Invariant: the shares of all micro-batches and ranks add up to the loss of the whole batch, so that its gradient does
not depend on how the batch was parted. FSDP averages gradients over ranks, and veRL averages what it reports, so each
share is multiplied by the number of ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from services.config.rollout_correction import RolloutCorrection
from services.config.tree import RunConfig
from services.trainer.algorithms.aggregation import aggregate
from services.trainer.algorithms.divergence import Kl, kl
from services.trainer.algorithms.entropy import entropy_mask
from services.trainer.algorithms.gap import gap, numbers
from services.trainer.algorithms.losses import PolicyLoss, policy_loss
from services.trainer.algorithms.rollout_correction import at_update
from services.trainer.algorithms.totals import Totals
from services.trainer.demands import demands

Shares = dict[str, Metric]
Tensors = dict[str, torch.Tensor]

_PER_TOKEN = (
    "response_mask",
    "old_log_probs",
    "advantages",
    "ref_log_prob",
    "proximal_log_prob",
    "rollout_is_weights",
    "values",
    "returns",
)
_OUTPUTS = {"log_probs": "log_probs", "entropy": "entropy", "values": "predicted"}


@dataclass(frozen=True)
class ActorLoss:
    """The policy loss, less entropy, plus a KL loss: all over the same totals, and in the same aggregation mode.

    `measures_gap`: old log-probs are the sampler's, so that this forward pass tells how far it is. `correction` is one
    in `bypass_mode`; of another the batch brings the weights.
    """

    policy_loss_fn: str
    policy_loss_fn_args: Mapping[str, object] = field(default_factory=dict)
    kl_loss_fn: str = "none"
    entropy_loss_fn: str = "none"
    entropy_coef: float = 0.0
    loss_agg_mode: str = "token-mean"
    measures_gap: bool = False
    correction: RolloutCorrection | None = None

    @cached_property
    def _policy_loss(self) -> PolicyLoss:
        return policy_loss(self.policy_loss_fn, **self.policy_loss_fn_args)

    @cached_property
    def _kl(self) -> Kl:
        return kl(self.kl_loss_fn)

    def __call__(self, model_output: Any, data: Any, dp_group: object = None) -> tuple[torch.Tensor, Shares]:
        """veRL's signature. `kl_coef` in `data` is the coefficient of the KL loss; without it there is none."""
        totals, ranks, rows = _totals(data), int(data["dp_size"]), _rows(data, model_output)
        logprob, mask, old = rows["log_probs"], rows["response_mask"], rows["old_log_probs"]
        weights, corrected = self._weights(rows, totals)
        loss, metrics = self._policy_loss(
            logprob,
            old,
            mask,
            rows["advantages"],
            totals=totals,
            step=int(data["step"]),
            expert_mask=rows["expert_mask"],
            ref_logprob=rows.get("ref_log_prob"),
            proximal_logprob=rows.get("proximal_log_prob"),
            weights=weights,
        )
        shares = {f"actor/{name}": value for name, value in metrics.items()} | {"actor/pg_loss": float(loss.detach())}
        shares |= {f"rollout_corr/{name}": value for name, value in numbers(corrected).items()}
        if "entropy" in rows:
            entropy = self._entropy(rows, totals)
            shares["actor/entropy_loss"] = float(entropy.detach())
            loss = loss - self.entropy_coef * entropy
        if "kl_coef" in data:
            per_token = self._kl(logprob, rows["ref_log_prob"], old)
            kl_loss = aggregate(per_token, mask, self.loss_agg_mode, totals)
            shares["actor/kl_loss"] = float(kl_loss.detach())
            loss = loss + float(data["kl_coef"]) * kl_loss
        return loss * ranks, summed(shares, ranks) | self._gap(rows, totals, ranks)

    def _weights(self, rows: Tensors, totals: Totals) -> tuple[torch.Tensor | None, Tensors]:
        """What the values of tokens are multiplied by, and what there is to tell about it."""
        if self.correction is None:
            return rows.get("rollout_is_weights"), {}
        log_ratio = (rows["log_probs"] - rows["old_log_probs"]).detach()
        return at_update(log_ratio, rows["response_mask"], rows["expert_mask"], self.correction, totals)

    def _gap(self, rows: Tensors, totals: Totals, ranks: int) -> Shares:
        if not self.measures_gap:
            return {}
        usual = ~rows["expert_mask"]
        logprob, sampled, mask = (rows[name][usual] for name in ("log_probs", "old_log_probs", "response_mask"))
        found = gap(logprob, sampled, mask.to(logprob.dtype), totals.usual)
        told = numbers(found.shares | found.maxima | found.minima)
        return {
            **summed({name: told[name] for name in found.shares}, ranks),
            **{name: Metric(value=told[name], aggregation=AggregationType.MAX) for name in found.maxima},
            **{name: Metric(value=told[name], aggregation=AggregationType.MIN) for name in found.minima},
        }

    def _entropy(self, rows: Tensors, totals: Totals) -> torch.Tensor:
        counted = entropy_mask(self.entropy_loss_fn, rows["response_mask"], rows["expert_mask"])
        of_usual = self.entropy_loss_fn == "mix"
        return aggregate(rows["entropy"], counted, self.loss_agg_mode, totals.usual if of_usual else totals)


@dataclass(frozen=True)
class CriticLoss:
    """The clipped value loss, mean over action tokens. Source: PPO2 of OpenAI baselines, as veRL has it."""

    cliprange_value: float = 0.5

    def __call__(self, model_output: Any, data: Any, dp_group: object = None) -> tuple[torch.Tensor, Shares]:
        """veRL's signature."""
        totals, ranks, rows = _totals(data), int(data["dp_size"]), _rows(data, model_output)
        predicted, before, returns = rows["predicted"], rows["values"], rows["returns"]
        mask = rows["response_mask"]
        clipped = predicted.clamp(before - self.cliprange_value, before + self.cliprange_value)
        plain, bounded = (predicted - returns) ** 2, (clipped - returns) ** 2
        loss = 0.5 * aggregate(torch.max(plain, bounded), mask, "token-mean", totals)
        shares = {
            "critic/vf_loss": loss,
            "critic/vf_clipfrac": aggregate((bounded > plain).float(), mask, "token-mean", totals),
            "critic/vpred_mean": aggregate(predicted, mask, "token-mean", totals),
        }
        return loss * ranks, summed({name: float(value.detach()) for name, value in shares.items()}, ranks)


def actor_loss(config: RunConfig) -> ActorLoss:
    """The loss of a resolved configuration."""
    algorithm = config.algorithm
    return ActorLoss(
        policy_loss_fn=algorithm.policy_loss_fn or "",
        policy_loss_fn_args=algorithm.policy_loss_fn_args or {},
        kl_loss_fn=algorithm.kl_loss_fn or "none",
        entropy_loss_fn=algorithm.entropy_loss_fn or "none",
        entropy_coef=float((algorithm.entropy_loss_fn_args or {}).get("entropy_coef", 0.0)),
        loss_agg_mode=algorithm.loss_agg_mode or "token-mean",
        measures_gap=bool(algorithm.bypass_old_logprobs) and demands(config).is_sampled,
        correction=algorithm.rollout_correction if algorithm.bypass_old_logprobs else None,
    )


def summed(shares: Mapping[str, float], ranks: int) -> Shares:
    """Shares as veRL adds them up: it takes the mean over ranks, then the sum over micro-batches."""
    return {name: Metric(value=value * ranks, aggregation=AggregationType.SUM) for name, value in shares.items()}


def _totals(data: Any) -> Totals:
    return Totals(
        tokens=int(data["totals_tokens"]),
        sequences=int(data["totals_sequences"]),
        length=int(data["totals_length"]),
        expert_tokens=int(data["totals_expert_tokens"]),
        expert_sequences=int(data["totals_expert_sequences"]),
    )


def _rows(data: Any, model_output: Any) -> Tensors:
    """What the losses read of the micro-batch, the silent rows left out: `B x T` padded with zeros, or `B`.

    What the model puts out in half precision is added up in float32.
    """
    is_loud = data["groups"] >= 0
    padded = data.select(*(name for name in _PER_TOKEN if name in data)).to_padded_tensor()
    found = {name: padded[name] for name in _PER_TOKEN if name in data}
    said = {
        _OUTPUTS[name]: no_padding_2_padding(model_output[name], data).float()
        for name in _OUTPUTS
        if name in model_output
    }
    return {name: tensor[is_loud] for name, tensor in ({**found, **said, "expert_mask": data["expert_mask"]}).items()}
