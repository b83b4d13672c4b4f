"""Tasks whose message or answer was lost, found without doubt, so that they can be released again.

Invariant: a task counts as lost only when its message had left the queue before the experience stream was seen to end
at `mark`, and the trainer has read the stream up to `mark` without finding an answer. An explorer takes a task off the
queue only after its answer is stored, so a task that is being worked on is never lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bus.port import Bus, Stored
from bus.subjects import Stream
from schemas.state import Reissued, TrainProgress
from schemas.tasks import TaskReleased

log = structlog.get_logger()


@dataclass(frozen=True)
class Suspicion:
    """Tasks that had left the queue unanswered when the experience stream ended at sequence `mark`."""

    ordinals: frozenset[int]
    mark: int


@dataclass(frozen=True)
class Verdict:
    """What becomes of lost tasks: those to release again, and those to give up; `reissued` counts all of them."""

    again: tuple[int, ...]
    given_up: tuple[int, ...]
    reissued: tuple[Reissued, ...]

    def retry(self, ordinal: int) -> int:
        return next(each.times for each in self.reissued if each.ordinal == ordinal)


def unanswered(released: int, train: TrainProgress | None) -> set[int]:
    """The released tasks that the trainer has seen no answer to."""
    if train is None:
        return set(range(released))
    return set(range(train.answered_floor, released)) - set(train.answered_above)


def gone(ordinals: Iterable[int], sequences: Mapping[int, int], before: int, first: int) -> frozenset[int]:
    """Those of `ordinals` whose message is not in the queue, of which `first` is the lowest sequence that is stored.

    `sequences` says where each message was stored; those that it lacks lie at `before` or lower.
    """
    return frozenset(ordinal for ordinal in ordinals if sequences.get(ordinal, before) < first)


def lost(suspicion: Suspicion, released: int, train: TrainProgress, newest: int) -> list[int]:
    """The suspects that are lost. `newest` is the last sequence of the experience stream that can be read."""
    if train.read_sequence < min(suspicion.mark, newest):
        return []
    return sorted(suspicion.ordinals & unanswered(released, train))


def judged(ordinals: Sequence[int], before: Sequence[Reissued], most: int, known: Iterable[int]) -> Verdict:
    """Lost tasks are released again up to `most` times, and then given up.

    A task is given up only when its last message was `known`, so that the quarantine can say where it was.
    """
    times = {each.ordinal: each.times for each in before}
    counted = {**times, **{ordinal: times.get(ordinal, 0) + 1 for ordinal in ordinals}}
    traced = set(known)
    given_up = tuple(ordinal for ordinal in ordinals if counted[ordinal] > most and ordinal in traced)
    again = tuple(ordinal for ordinal in ordinals if ordinal not in given_up)
    reissued = tuple(Reissued(ordinal=ordinal, times=counted[ordinal]) for ordinal in sorted(counted))
    return Verdict(again, given_up, reissued)


class Recovery:
    """Watches the released tasks of one leader's term. `before` is the last sequence of the queue when it began."""

    def __init__(self, bus: Bus, before: int) -> None:
        self._bus = bus
        self._before = before
        self._sequences: dict[int, int] = {}
        self._suspicion: Suspicion | None = None

    @property
    def sequences(self) -> Mapping[int, int]:
        """Where in the queue each task was stored, of those that this leader has published."""
        return self._sequences

    def published(self, tasks: Sequence[TaskReleased], stored: Sequence[Stored]) -> None:
        for task, place in zip(tasks, stored, strict=True):
            self._sequences[task.task.ordinal] = place.sequence
            if place.is_duplicate:
                log.info("task_was_there_already", task=task.task.task_id, sequence=place.sequence)

    async def lost(self, released: int, train: TrainProgress | None) -> list[int]:
        """The tasks that are lost for certain. `train` must have been fetched since the last call."""
        open_tasks = unanswered(released, train)
        self._forget(train)
        if not open_tasks or train is None or train.is_finished:
            self._suspicion = None
            return []
        if self._suspicion is None:
            await self._suspect(open_tasks)
            return []
        newest = await self._bus.last(Stream.EXPERIENCES)
        found = lost(self._suspicion, released, train, newest.sequence if newest else 0)
        if found or not self._suspicion.ordinals & open_tasks:
            self._suspicion = None
        return found

    async def _suspect(self, open_tasks: set[int]) -> None:
        queue = await self._bus.state(Stream.TASKS)
        suspects = gone(open_tasks, self._sequences, self._before, queue.first if queue.messages else queue.last + 1)
        if suspects:
            answers = await self._bus.state(Stream.EXPERIENCES)  # only after the look at the queue
            self._suspicion = Suspicion(suspects, answers.last)

    def _forget(self, train: TrainProgress | None) -> None:
        floor = train.answered_floor if train else 0
        for ordinal in [each for each in self._sequences if each < floor]:
            del self._sequences[ordinal]
