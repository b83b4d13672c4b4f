"""The experience pipeline: what of a group is trained on, and which rule keeps the rest out.

Invariant: what becomes of a group is a pure function of the group, of the step whose batch it falls into, and of the
configuration. Every experience that goes in comes out, or is counted under exactly one rule.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from schemas.experiences import Experience
from services.trainer.pipeline.outcome import Experiences, Operator, OperatorFailed, Outcome

INVALID = "invalid_reward_filter"
STALE = "stale"


@dataclass(frozen=True)
class Stage:
    """One operator with its arguments. `rule` names in the ledger what it filters."""

    rule: str
    operator: Operator
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def outcome(self, experiences: Experiences) -> Outcome:
        """What is left, checked.

        Raises:
            OperatorFailed: the operator raises, or gives back what cannot be trained on.
        """
        try:
            found = self.operator(experiences, **self.arguments)
        except Exception as error:  # whatever a user's operator raises
            raise OperatorFailed(f"operator {self.rule!r} raises {type(error).__name__}: {error}") from error
        if not isinstance(found, Outcome):
            raise OperatorFailed(f"operator {self.rule!r} returns {type(found).__name__}: return an Outcome")
        given = {_place(each): each for each in experiences}
        kept = tuple(found.kept)
        if len({_place(each) for each in kept} & given.keys()) != len(kept):
            raise OperatorFailed(f"operator {self.rule!r} keeps an experience twice, or one that it was not given")
        for each in kept:
            if each is not given[_place(each)]:
                self._check(each, given[_place(each)])
        return Outcome(kept, found.metrics)

    def _check(self, changed: Experience, given: Experience) -> None:
        """A changed experience must be one, but for a reward that is not finite: that one is filtered."""
        reward = changed.reward if math.isfinite(changed.reward) else 0.0
        try:
            Experience(**{**{name: getattr(changed, name) for name in Experience.model_fields}, "reward": reward})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
            raise OperatorFailed(f"operator {self.rule!r} spoils position {given.position}: {problems}") from error


@dataclass(frozen=True)
class Passed:
    """What became of a group: `kept` is trained on, `filtered` counts the others by rule, in the order of the rules."""

    kept: Experiences
    filtered: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pipeline:
    """The operators in order; then what is staler than `max_staleness` steps (None: nothing) is left out.

    `refill` says how much of a batch, in batches, may be filtered and made up for by the groups that follow; beyond
    that, what is filtered counts as if it were there.
    """

    stages: tuple[Stage, ...] = ()
    max_staleness: float | None = None
    refill: int = 10

    def passed(self, experiences: Experiences, step: int) -> Passed:
        """What becomes of a group whose batch makes trainer step `step` (from 1).

        Raises:
            OperatorFailed: an operator cannot work on it.
        """
        found = self.operated(experiences)
        kept = tuple(each for each in found.kept if not self.is_stale(oldest_version(each), step))
        return replace(found, kept=kept, filtered=counted(found.filtered, STALE, len(found.kept) - len(kept)))

    def operated(self, experiences: Experiences) -> Passed:
        """What the operators alone make of a group."""
        kept, filtered, metrics = experiences, dict[str, int](), dict[str, float]()
        for stage in self.stages:
            if not kept:
                break
            outcome = stage.outcome(kept)
            filtered = counted(filtered, stage.rule, len(kept) - len(outcome.kept))
            kept, metrics = outcome.kept, {**metrics, **outcome.metrics}
        finite = tuple(each for each in kept if math.isfinite(each.reward))
        return Passed(finite, counted(filtered, INVALID, len(kept) - len(finite)), metrics)

    def is_stale(self, version: int, step: int) -> bool:
        """Whether what `version` has sampled is too old to make `step`."""
        return self.max_staleness is not None and step - 1 - version > self.max_staleness


def oldest_version(experience: Experience) -> int:
    """The version that sampled the oldest of its tokens."""
    return int(experience.token_versions.min())


def counted(filtered: Mapping[str, int], rule: str, count: int) -> dict[str, int]:
    """`filtered` with `count` more under `rule`; as it was where that is none."""
    return {**filtered, rule: filtered.get(rule, 0) + count} if count else dict(filtered)


def _place(each: Experience) -> tuple[int, int]:
    return each.position, each.step


WITHOUT_OPERATORS = Pipeline()
