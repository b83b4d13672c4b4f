"""The rule by which experiences are trained on more than once (`experience_buffer.replay_buffer`). Pure.

Priorities and names are those of Trinity-RFT's replay buffer; the priority of a group is a function of the group's
version, of the uses that it has had, and of its task.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Self

PRIORITY_ARGS: dict[str, dict[str, float]] = {
    "linear_decay": {"decay": 2.0},
    "decay_limit_randomization": {"decay": 2.0, "use_count_limit": 3, "sigma": 0.0},
}
"""The priority functions, with the defaults of their arguments."""

_BITS = 52


@dataclass(frozen=True)
class ReuseRule:
    """What may be trained on again, and what of it comes first.

    A group that has been used `uses` times, whose oldest token was sampled by `version`, has the priority
    `version - decay * uses`, to which `sigma` times a standard normal number is added. It may be used again
    `cooldown_s` seconds of stream time after its last use, unless it has been used `use_count_limit` times (0: no
    limit), or is staler than `max_staleness` steps (None: no bound). `capacity` bounds what is held, in experiences;
    `train_batch_size` are the experiences of a whole step.
    """

    train_batch_size: int
    capacity: int
    cooldown_s: float = 0.0
    priority_fn: str = "linear_decay"
    decay: float = 2.0
    use_count_limit: int = 0
    sigma: float = 0.0
    max_staleness: float | None = None

    def priority(self, version: int, uses: int, ordinal: int) -> float:
        """Of a group that answers task `ordinal`."""
        noise = self.sigma * standard_normal(ordinal, uses) if self.sigma else 0.0
        return version - self.decay * uses + noise

    def is_used_up(self, uses: int) -> bool:
        return 0 < self.use_count_limit <= uses

    def is_stale(self, version: int, step: int) -> bool:
        """Whether what `version` has sampled is too old to make `step` (from 1)."""
        return self.max_staleness is not None and step - 1 - version > self.max_staleness

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)


def priority_args(priority_fn: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a priority function, complete; those of a function that is not there are `given`."""
    return {**PRIORITY_ARGS.get(priority_fn, {}), **given}


def standard_normal(ordinal: int, uses: int) -> float:
    """A standard normal number that is a function of a task and of how often its answer was used: the inverse of the
    normal distribution at 52 bits of a SHA-256, so that every machine and every replay draws the same."""
    digest = hashlib.sha256(f"reuse:{ordinal}:{uses}".encode()).digest()
    share = ((int.from_bytes(digest[:8], "big") >> (64 - _BITS)) + 0.5) / 2**_BITS
    return NormalDist().inv_cdf(share)
