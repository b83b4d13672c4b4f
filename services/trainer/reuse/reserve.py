"""The pool with the experiences themselves: what the intake asks for when a batch closes."""

import math
from dataclasses import dataclass, replace

from schemas.experiences import GroupSampled, TaskAbandoned
from services.config.reuse import ReuseRule
from services.runtime.context import Uncorrected
from services.trainer.pipeline.pipeline import Pipeline, oldest_version
from services.trainer.reuse.pool import Drawn, Pool, Pooled, drawn


class ReserveLost(Uncorrected):
    """What the ledger says may be trained on again is not what the stream holds."""


@dataclass(frozen=True)
class Refilled:
    """A step's reused groups with their experiences, in stream order, and what became of the pool."""

    groups: tuple[GroupSampled, ...]
    drawn: Drawn


class Reserve:
    """The pool as of the last batch that was closed, and its groups as they were trained on first."""

    def __init__(self, rule: ReuseRule, pool: Pool) -> None:
        self._rule = rule
        self._pool = pool
        self._time = pool.time
        self._groups: dict[int, GroupSampled] = {}
        self._fresh: list[Pooled] = []

    @property
    def lacking(self) -> list[int]:
        """The sequences of the pool whose groups are not here, in order: those of before a restart."""
        return [group.sequence for group in self._pool.groups if group.sequence not in self._groups]

    def hear(self, message: GroupSampled | TaskAbandoned) -> None:
        """The stream's time goes on with the first answers to tasks, by the time at which they were made."""
        at = message.finished_at if isinstance(message, GroupSampled) else message.abandoned_at
        if math.isfinite(at):
            self._time = max(self._time, at)

    def add(self, sequence: int, group: GroupSampled) -> None:
        """A group of the open batch, with the experiences of it that are trained on."""
        self._fresh.append(Pooled.of(sequence, group.task.ordinal, group.experiences))
        self._groups[sequence] = group

    def restore(self, sequence: int, group: GroupSampled, pipeline: Pipeline) -> None:
        """Hold a group of the pool again, read anew from the stream.

        Raises:
            OperatorFailed: the pipeline cannot work on it any more.
            ReserveLost: the pipeline leaves something else of it than before.
        """
        known = next(each for each in self._pool.groups if each.sequence == sequence)
        left = pipeline.operated(group.experiences).kept
        kept = tuple(each for each in left if oldest_version(each) >= known.version)
        as_it_was = Pooled.of(sequence, group.task.ordinal, kept) if kept else None
        if as_it_was != replace(known, uses=1, used_at=0.0):
            raise ReserveLost(
                f"of the group at sequence {sequence}, {known.experiences} experiences were trained on, and the "
                f"pipeline leaves {len(kept)} now: set data_processor.experience_pipeline.operators as they were, or "
                "go on without buffer.trainer_input.experience_buffer.replay_buffer"
            )
        self._groups[sequence] = group.model_copy(update={"experiences": kept})

    def pass_over(self) -> None:
        """Close the open batch, which makes no step: it leaves no trace."""
        self._time, self._fresh = self._pool.time, []

    def refill(self, step: int) -> Refilled:
        """Close the open batch as step `step`."""
        found = drawn(self._pool, self._rule, self._fresh, step, self._time)
        groups = tuple(self._groups[group.sequence] for group in found.reused)
        self._pool, self._fresh = found.pool, []
        held = {group.sequence for group in found.pool.groups}
        self._groups = {sequence: group for sequence, group in self._groups.items() if sequence in held}
        return Refilled(groups, found)
