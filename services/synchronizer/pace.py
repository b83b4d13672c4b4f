"""The pace: when a batch of tasks may be released. Pure functions of numbers, so that staleness is a bound.

Batch `k` counts from 0, by places (`services/synchronizer/refill.py`). A task of batch `k` is sampled under version
`floor_version(k)` or a later one. Batches are released in order, and none that may reach more than `held_steps` beyond
the first step of a batch with an unanswered task, so a slow task holds the pace rather than growing stale. What is
trained is therefore at most `staleness_bound` steps older than the weights that it trains.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Style = Literal["fixed", "explorer", "trainer", "asynchronous"]

STYLES: dict[str, Style] = {
    "fixed": "fixed",
    "dynamic_by_explorer": "explorer",
    "explorer_driven": "explorer",
    "dynamic_by_trainer": "trainer",
    "trainer_driven": "trainer",
    "fully_async": "asynchronous",
}


@dataclass(frozen=True)
class Pace:
    """The rules of one run. `steps_per_batch` is the trainer steps that the experiences of a batch make;
    `max_outstanding` the batches that explorers may work on, with those that over-rollout lets be slow."""

    style: Style
    interval: int = 1
    offset: int = 0
    max_staleness: int | None = None
    max_outstanding: float = 2
    steps_per_batch: float = 1.0


@dataclass(frozen=True)
class Facts:
    """Where the run is: `oldest_unanswered` is a batch; `outstanding` counts batches that explorers still work on."""

    version: int | None
    step: int
    oldest_unanswered: int
    outstanding: float


def steps_before(batch: int, pace: Pace) -> int:
    """Trainer steps that all batches before `batch` make."""
    return int(batch * pace.steps_per_batch + 1e-9)


def floor_version(batch: int, pace: Pace) -> int:
    """The lowest version that may sample `batch`."""
    steps = steps_before(batch, pace)
    if pace.style == "fixed":
        return pace.interval * (max(0, steps - pace.offset) // pace.interval)
    lag = _lag(pace)
    return 0 if lag is None else max(0, -(-(steps - lag) // pace.interval) * pace.interval)


def last_step(batch: int, pace: Pace) -> int:
    """The last trainer step, from 0, that the batches up to `batch` can take part in."""
    return math.ceil((batch + 1) * pace.steps_per_batch - 1e-9) - 1


def span(pace: Pace) -> int:
    """Steps by which the last step of a batch may be beyond its first: 0 where every batch falls into one step."""
    ratio = Fraction(pace.steps_per_batch).limit_denominator(1_000_000)
    return -(-(ratio.denominator - 1 + ratio.numerator) // ratio.denominator) - 1


def held_steps(pace: Pace) -> int | None:
    """Steps by which batches may go beyond the first step of an unanswered task; None where nothing bounds it."""
    lag = _lag(pace)
    if lag is None or pace.max_staleness is None:
        return None if lag is None else max(lag, span(pace))
    slack = max(0, pace.max_staleness - lag)
    return max(span(pace), min(lag, slack) if pace.style == "fixed" else slack)


def staleness_bound(pace: Pace) -> int | None:
    """Steps by which trained weights may be ahead of those that sampled; None where nothing bounds it.

    A task whose batch begins with step `s` is sampled under a version of at least `s - lag`, and is trained on at the
    latest by step `s + held_steps`, because until it is answered no batch that goes beyond is released.
    """
    lag, held = _lag(pace), held_steps(pace)
    return None if lag is None or held is None else lag + held


def _lag(pace: Pace) -> int | None:
    """Steps by which the version that samples a batch may trail that batch."""
    if pace.style == "fixed":
        return pace.offset + pace.interval - 1
    if pace.max_staleness is None:
        return None
    return max(pace.max_staleness - pace.max_staleness // 2, pace.interval - 1)


def waiting_for(batch: int, pace: Pace, facts: Facts) -> str | None:
    """What the release of `batch` waits for, in words; None when it may be released."""
    floor = floor_version(batch, pace)
    if facts.version is None:
        return "a trainer: no weights have been announced"
    if facts.version < floor:
        return f"weight version {floor}: the newest is {facts.version}"
    held = held_steps(pace)
    if held is not None and last_step(batch, pace) - steps_before(facts.oldest_unanswered, pace) > held:
        return f"an answer to a task of batch {facts.oldest_unanswered}"
    if pace.style == "trainer" and steps_before(batch, pace) > facts.step + pace.interval + pace.offset:
        return f"trainer step {steps_before(batch, pace) - pace.interval - pace.offset}: it is at {facts.step}"
    if pace.style != "fixed" and facts.outstanding > pace.max_outstanding - 1:
        return f"explorers: {facts.outstanding:.1f} batches are in their hands"
    return None
