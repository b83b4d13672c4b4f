"""How often a task was really tried: deliveries that ended by a hand-back do not count.

How a delivery ends is written to the key-value store before the task is handed back, so that no failure in between can
turn a hand-back into an attempt.
"""

from dataclasses import dataclass

from bus.errors import RevisionConflict
from bus.port import Bus, Delivery
from schemas.state import TaskExcused
from schemas.tasks import TaskReleased
from services.runtime.keys import excuse_key

_KEPT_S = 7 * 24 * 3600.0
"""An answered task's record is taken away; that of a task that nobody came to answer vanishes after this time."""


@dataclass(frozen=True)
class Tried:
    """Which attempt a delivery is, from 1, and how many of those before it ended with their explorer."""

    attempt: int = 1
    deaths: int = 0

    def is_last_chance(self, max_deliver: int) -> bool:
        """Whether the task has to be answered alone: it, or one that was answered beside it, has ended explorers, and
        when this delivery ends in the same way it is given up. An innocent task is thus answered, and not given up."""
        return self.deaths > 0 and self.attempt == max_deliver


class Attempts:
    """The records of this run's tasks."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def tried(self, delivery: Delivery, task: TaskReleased) -> Tried:
        """The store is asked only about what was delivered before."""
        if delivery.attempt <= 1:
            return Tried()
        record, _ = await self._record(task)
        attempt = max(1, delivery.attempt - record.times)
        return Tried(attempt, max(0, attempt - 1 - record.failures))

    async def excuse(self, task: TaskReleased) -> None:
        """This delivery ends by a hand-back."""
        await self._add(task, times=1)

    async def fail(self, task: TaskReleased) -> None:
        """This delivery ends by an error that was told."""
        await self._add(task, failures=1)

    async def forget(self, delivery: Delivery, task: TaskReleased) -> None:
        """The task is off the queue."""
        if delivery.attempt > 1:
            await self._bus.delete(excuse_key(task.task.ordinal))

    async def _add(self, task: TaskReleased, times: int = 0, failures: int = 0) -> None:
        while True:
            record, revision = await self._record(task)
            more = {"times": record.times + times, "failures": record.failures + failures}
            try:
                key = excuse_key(task.task.ordinal)
                await self._bus.swap(key, record.model_copy(update=more), revision, ttl_s=_KEPT_S)
            except RevisionConflict:
                continue
            return

    async def _record(self, task: TaskReleased) -> tuple[TaskExcused, int]:
        held = await self._bus.get(excuse_key(task.task.ordinal))
        if held is not None and isinstance(held.message, TaskExcused):
            return held.message, held.revision
        return TaskExcused(ordinal=task.task.ordinal, times=0), held.revision if held else 0
