"""The arguments of every policy loss, with their defaults and bounds. Formulas: `services/trainer/algorithms`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from services.config.algorithms.arguments import Arguments

AggregationMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
Level = Literal["token", "sequence"]


class LossArguments(Arguments):
    """What every policy loss takes. KL and entropy terms are aggregated as the policy loss is."""

    default_agg_mode: ClassVar[AggregationMode] = "token-mean"
    loss_agg_mode: AggregationMode | None = None

    @property
    def agg_mode(self) -> AggregationMode:
        return self.loss_agg_mode or self.default_agg_mode

    def complete(self) -> dict[str, Any]:
        return self.model_dump() | {"loss_agg_mode": self.agg_mode}


class ClippedLoss(LossArguments):
    """A ratio kept within `[1 - low, 1 + high]`. `clip_range` stands for both sides; a side given beside it wins."""

    clip_range: float | None = Field(None, ge=0)
    clip_range_low: float | None = Field(None, ge=0)
    clip_range_high: float | None = Field(None, ge=0)

    @classmethod
    def covering(cls, layer: Mapping[str, Any]) -> dict[str, Any]:
        sides = {"clip_range_low": None, "clip_range_high": None} if layer.get("clip_range") is not None else {}
        return sides | dict(layer)

    @model_validator(mode="after")
    def _both_sides_are_given(self) -> Self:
        if self.clip_range is None and None in (self.clip_range_low, self.clip_range_high):
            raise ValueError("give clip_range, or both clip_range_low and clip_range_high")
        return self

    @property
    def low(self) -> float:
        return (self.clip_range or 0.0) if self.clip_range_low is None else self.clip_range_low

    @property
    def high(self) -> float:
        return (self.clip_range or 0.0) if self.clip_range_high is None else self.clip_range_high


class PpoLoss(ClippedLoss):
    """PPO with dual clip; `enable_sequence_masking` is DeepSeek-V3.2's off-policy sequence mask."""

    clip_range: float | None = Field(0.2, ge=0)
    clip_ratio_c: float = Field(3.0, gt=1)
    enable_sequence_masking: bool = False
    delta_sequence_masking: float = 0.1
    fallback_to_policy_gradient: bool = False


class GspoLoss(ClippedLoss):
    default_agg_mode: ClassVar[AggregationMode] = "seq-mean-token-mean"
    clip_range_low: float | None = Field(3e-4, ge=0)
    clip_range_high: float | None = Field(4e-4, ge=0)


class SppoLoss(LossArguments):
    epsilon: float = Field(0.3, ge=0)


class CispoLoss(LossArguments):
    clip_range_low: float = Field(1.0, ge=0)
    clip_range_high: float = Field(0.28, ge=0)
    enable_mask_clip: bool = False
    mask_clip_range_low: float = Field(1.0, ge=0)
    mask_clip_range_high: float = Field(0.28, ge=0)


class SapoLoss(LossArguments):
    """`differentiate_gate` takes the gradient through the gate, as the paper's objective has it."""

    tau_pos: float = Field(1.0, gt=0)
    tau_neg: float = Field(1.05, gt=0)
    differentiate_gate: bool = False

    @model_validator(mode="after")
    def _negative_is_no_softer(self) -> Self:
        if self.tau_neg < self.tau_pos:
            raise ValueError(f"tau_neg={self.tau_neg} is below tau_pos={self.tau_pos}: use {self.tau_pos} or more")
        return self


class ToprLoss(LossArguments):
    advantage_threshold: float = 0.0


class ImportanceSamplingLoss(LossArguments):
    """The plain ratio takes nothing but the aggregation."""


class ReinforceLoss(LossArguments):
    """The plain policy gradient takes nothing but the aggregation."""


class OpmdLoss(LossArguments):
    tau: float = Field(1.0, ge=0)


class RecLoss(LossArguments):
    epsilon_low: float = Field(0.2, gt=0, le=1)
    epsilon_high: float = Field(0.2, gt=0)
    epsilon_low_prime: float = Field(0.6, gt=0, le=1)
    epsilon_high_prime: float = Field(2.0, gt=0)
    clip_mode: Literal["none", "one-side", "gspo-one-side", "two-side", "ring"] = "none"
    weight: Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"] = "none"
    regularizer: Literal["none", "k2", "forward-kl"] = "none"
    regularizer_coef: float = Field(0.0, ge=0)
    temp: float = Field(1.0, gt=0)

    @property
    def agg_mode(self) -> AggregationMode:
        by_sequence = self.clip_mode == "gspo-one-side"
        return self.loss_agg_mode or ("seq-mean-token-mean" if by_sequence else "token-mean")


class DpoLoss(LossArguments):
    """The loss itself is a mean over pairs; `loss_agg_mode` is that of the KL and entropy terms."""

    beta: float = Field(0.1, gt=0)
    label_smoothing: float = Field(0.0, ge=0, le=0.5)


class SftLoss(LossArguments):
    """The negative log-likelihood takes nothing but the aggregation."""


class SftPhiLoss(LossArguments):
    cutoff_prob: float = Field(1.0, gt=0, le=1)


class MixedLoss(ClippedLoss):
    """What losses over a batch of usual and expert rows share.

    The sizes count only where a caller gives no totals: with them each kind is normalised over its own global rows.
    """

    clip_range: float | None = Field(0.2, ge=0)
    sft_loss_agg_mode: AggregationMode | None = None
    grpo_loss_agg_mode: AggregationMode | None = None
    use_dynamic_bsz: bool | None = None
    ppo_mini_batch_size: int = Field(1, ge=1)
    ppo_micro_batch_size_per_gpu: int = Field(1, ge=1)
    ngpus_trainer: int = Field(1, ge=1)
    train_batch_size_usual: int = Field(1, ge=1)
    train_batch_size_expert: int = Field(1, ge=1)


class MixLoss(MixedLoss):
    mu: float = Field(0.1, ge=0, le=1)


class MixChordLoss(MixedLoss):
    """`mu` rises to `mu_peak` in `mu_warmup_steps`, then falls to `mu_valley` in `mu_decay_steps`."""

    mu_warmup_steps: int = Field(0, ge=0)
    mu_decay_steps: int = Field(0, ge=0)
    mu_peak: float = Field(0.1, ge=0, le=1)
    mu_valley: float = Field(0.1, ge=0, le=1)
    enable_phi_function: bool = True


class CorrectedLoss(ClippedLoss):
    """PPO around the policy at the batch's start; `clip_ratio_c` of None leaves the dual clip out."""

    clip_range: float | None = Field(0.2, ge=0)
    clip_ratio_c: float | None = Field(3.0, gt=1)


class DecoupledPpoLoss(CorrectedLoss):
    clip_ratio_c: float | None = Field(None, gt=1)
    weight_cap: float | None = Field(5.0, gt=0)
    cap_action: Literal["mask", "clamp"] = "mask"


class TisLoss(CorrectedLoss):
    level: Level = "token"
    upper: float = Field(2.0, gt=0)


class BoundedLoss(CorrectedLoss):
    lower: float = Field(ge=0)
    upper: float = Field(gt=0)

    @model_validator(mode="after")
    def _bounds_hold_something(self) -> Self:
        if self.lower >= self.upper:
            raise ValueError(f"lower={self.lower} is not below upper={self.upper}: nothing would be learned from")
        return self


class IcepopLoss(BoundedLoss):
    level: Level = "token"
    lower: float = Field(0.5, ge=0)
    upper: float = Field(5.0, gt=0)


class GeoMaskLoss(BoundedLoss):
    lower: float = Field(0.99, ge=0)
    upper: float = Field(1.01, gt=0)


class DppoTvLoss(LossArguments):
    mask_low: float = Field(0.2, ge=0)
    mask_high: float = Field(0.2, ge=0)
    adv_tau: float = Field(1.0, ge=0)
    kl_tau: float = Field(1e-3, ge=0)
