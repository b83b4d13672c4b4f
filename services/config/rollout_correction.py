"""veRL's rollout correction: how tokens are weighed, and left out, for the gap between the sampler and the trainer.

`r` is the trainer's probability of a token over the sampler's. A statistic is `k1 = -log r`, `k2 = (log r)^2 / 2` or
`k3 = r - 1 - log r`, of a token, or a response's sum, mean or largest.
"""

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

from pydantic import Field

from services.config.section import Section

Scope = Literal["token", "seq_sum", "seq_mean", "seq_max"]
Estimator = Literal["k1", "k2", "k3"]

RATIOS: dict[str, str] = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
OPTIONS = (
    *(f"{scope}_{estimator}" for scope in ("token", "seq_sum", "seq_mean") for estimator in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
)


@dataclass(frozen=True)
class Bound:
    """Tokens stay where `lower <= statistic <= upper`; of `k1` these bound `exp(k1)`, others have no lower one."""

    option: str
    upper: float
    lower: float | None = None

    @property
    def scope(self) -> Scope:
        return cast(Scope, self.option.rpartition("_")[0])

    @property
    def estimator(self) -> Estimator:
        return cast(Estimator, self.option.rpartition("_")[2])


class RolloutCorrection(Section):
    """`bypass_mode` compares with the policy of the update itself; otherwise with the trainer's at the batch's start.

    `rollout_rs_threshold_lower` and `rollout_token_veto_threshold` are of earlier versions of veRL: bounds of `r`.
    """

    rollout_is: Literal["token", "sequence"] | None = None
    rollout_is_threshold: float | str = 2.0
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: float | str | None = None
    rollout_rs_threshold_lower: float | None = Field(None, gt=0)
    rollout_token_veto_threshold: float | None = Field(None, gt=0, lt=1)
    bypass_mode: bool = False
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"

    @property
    def weights_count(self) -> bool:
        """Whether the weights multiply the loss; a clipped loss in `bypass_mode` has the ratio in it already."""
        return self.rollout_is is not None and not (self.bypass_mode and self.loss_type == "ppo_clip")

    @property
    def weight_bounds(self) -> tuple[float | None, float]:
        """The bounds of a weight: above the upper one it is cut off; with a lower one, outside of them it is 0.

        Raises:
            ValueError: the threshold is no number above 0, and no two of them in order.
        """
        lower, upper = _pair("rollout_is_threshold", self.rollout_is_threshold)
        return lower, upper

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What `rollout_rs` asks for; all of them must hold.

        Raises:
            ValueError: an option is not known, or its threshold is missing or not possible.
        """
        options = _options(self.rollout_rs)
        if not options:
            return ()
        if self.rollout_rs_threshold is None:
            raise ValueError(f"rollout_rs={self.rollout_rs} has no bound: give rollout_rs_threshold")
        given = [part.strip() for part in str(self.rollout_rs_threshold).split(",") if part.strip()]
        if len(given) not in (1, len(options)):
            raise ValueError(
                f"rollout_rs_threshold={self.rollout_rs_threshold} has {len(given)} bounds for {len(options)} options: "
                "give one for all, or one each"
            )
        thresholds = given * len(options) if len(given) == 1 else given
        return tuple(self._bound(option, text) for option, text in zip(options, thresholds, strict=True))

    def _bound(self, option: str, text: str) -> Bound:
        lower, upper = _pair("rollout_rs_threshold", text)
        if option in RATIOS:
            lower = self.rollout_rs_threshold_lower or lower or 1 / upper
            _ordered("rollout_rs_threshold_lower", lower, upper)
            return Bound(RATIOS[option], 1 / lower, 1 / upper)
        if option.endswith("k1"):
            lower = 1 / upper if lower is None else lower
            _ordered("rollout_rs_threshold", lower, upper)
            return Bound(option, upper, lower)
        if lower is not None:
            raise ValueError(f"rollout_rs_threshold={text} has two bounds, and {option} takes an upper one alone")
        return Bound(option, upper)


def _options(given: str | None) -> list[str]:
    options = list(dict.fromkeys(part.strip() for part in (given or "").split(",") if part.strip()))
    known = (*OPTIONS, *RATIOS)
    for option in options:
        if option not in known:
            meant = get_close_matches(option, known, n=1)
            hint = f"did you mean {meant[0]}? " if meant else ""
            raise ValueError(f"rollout_rs={option} is not known: {hint}use one of {', '.join(known)}")
    return options


def _pair(key: str, given: float | str) -> tuple[float | None, float]:
    """`0.5_2.0` as both bounds, a number alone as the upper one."""
    parts = str(given).strip().split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f'{key}={given} is refused: give a number above 0, or two as in "0.5_2.0"')
    if len(numbers) == 1:
        return None, numbers[0]
    _ordered(key, *numbers)
    return numbers[0], numbers[1]


def _ordered(key: str, lower: float, upper: float) -> None:
    if lower > upper:
        raise ValueError(f"{key}: the lower bound {lower} is above the upper one {upper}")
