"""The arguments of every advantage function, with their defaults. Formulas: `services/trainer/algorithms`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.config.algorithms.arguments import Arguments

Scope = Literal["group", "batch"]


class NoArguments(Arguments):
    """For parts that have nothing to set."""


class Normalized(Arguments):
    epsilon: float = Field(1e-6, ge=0)


class GrpoAdvantage(Normalized):
    std_threshold: float | None = Field(None, ge=0)
    duplicate_experiences: bool = False
    rank_penalty: float | None = Field(None, ge=0, le=1)
    std_cal_level: Scope = "group"
    std_normalize: bool = True

    @model_validator(mode="after")
    def _only_dropped_groups_are_replaced(self) -> Self:
        if self.duplicate_experiences and self.std_threshold is None:
            raise ValueError("duplicate_experiences replaces the groups that std_threshold drops: set std_threshold")
        return self


class StepWiseGrpoAdvantage(Normalized):
    enable_step_norm: bool = False
    std_threshold: float | None = Field(None, ge=0)
    std_cal_level: Scope = "group"


class GigpoAdvantage(Normalized):
    """The two keys are Trinity-RFT's names of what an experience holds in `step_reward` and `state`."""

    omega: float = 1.0
    gamma: float = Field(1.0, ge=0, le=1)
    fnorm: Literal["std", "none"] = "none"
    step_reward_key: Literal["step_reward"] = "step_reward"
    env_state_hash_key: Literal["env_state_hash"] = "env_state_hash"


class OpmdAdvantage(Arguments):
    opmd_baseline: Literal["mean", "logavgexp"] = "mean"
    tau: float = Field(1.0, gt=0)


class AsymreAdvantage(Arguments):
    baseline_shift: float = -0.1


class RecAdvantage(Normalized):
    std_normalize: bool = False
    drop: Literal["balance"] | None = None


class GaeAdvantage(Arguments):
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)


class ReturnAdvantage(Arguments):
    gamma: float = Field(1.0, ge=0, le=1)


class DistillAdvantage(Arguments):
    kl_coef: float = Field(1.0, ge=0)


class JsdAdvantage(DistillAdvantage):
    lambda_coef: float = Field(0.5, ge=0, le=1)
    temperature: float = Field(1.0, gt=0)
    chunk_size: int | None = Field(None, ge=1)


class ClipBAdvantage(Normalized):
    mu: float = Field(2.5, ge=0)


class ClipVAdvantage(Normalized):
    mu: float = Field(8.5, ge=0)
    max_frac: float = Field(1e-4, ge=0, le=1)
