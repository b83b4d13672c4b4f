"""Answers into the stream of another run: in order, and each exactly once, though the work may be begun again.

An answer is known by the ordinal and the retry of its task, of which the id of its message is made. Where a stream
holds two answers of one id (the second came after the broker's window for duplicates), the later one carries a higher
retry from here on, or it would be dropped.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from bus.errors import PublishTimeout, StreamFull
from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from services.replay.errors import ReplayError
from services.store.messages import Answer

Told = Callable[[int], None]
"""Hears how many experiences have been dealt with so far."""

_PATIENCE_S = 60.0


@dataclass
class Carried:
    """What was published, in groups, experiences and abandoned tasks, and how many answers stood there already."""

    groups: int = 0
    experiences: int = 0
    abandoned: int = 0
    already: int = 0


class Distinct:
    """Gives each answer of a stream an id of its own; the same answers always get the same ids."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def of(self, answer: Answer) -> Answer:
        retry = answer.retry
        while (answer.task.ordinal, retry) in self._seen:
            retry += 1
        self._seen.add((answer.task.ordinal, retry))
        return answer if retry == answer.retry else answer.model_copy(update={"retry": retry})


async def present(bus: Bus) -> set[tuple[int, int]]:
    """The ordinal and retry of every answer that the run's stream holds."""
    return {
        (delivery.message.task.ordinal, delivery.message.retry)
        async for delivery in bus.read(Stream.EXPERIENCES, follow=False)
        if isinstance(delivery.message, Answer)
    }


async def check_room(bus: Bus, append: bool) -> set[tuple[int, int]]:
    """What stands in the run's stream already: nothing, unless `append`.

    Raises:
        ReplayError: the run has experiences, and is not to be appended to.
    """
    held = await bus.state(Stream.EXPERIENCES)
    if held.last == 0:
        return set()
    if not append:
        raise ReplayError(
            f"run {bus.run} has had {held.last} messages of experiences already: choose another name with --as, or "
            "add what is missing with --append"
        )
    return await present(bus)


async def carry(bus: Bus, answers: AsyncIterator[Answer], already: set[tuple[int, int]], tell: Told) -> Carried:
    """Publish `answers`, which are those of the bus's run, one after the other.

    Raises:
        ReplayError: the stream has no room for them.
    """
    carried, distinct = Carried(), Distinct()
    async for answer in answers:
        answer = distinct.of(answer)
        if (answer.task.ordinal, answer.retry) in already:
            carried.already += 1
            continue
        try:
            await bus.publish(answer, deadline_s=_PATIENCE_S)
        except (StreamFull, PublishTimeout) as error:
            raise ReplayError(f"{_done(carried)} are in run {bus.run}, and then: {error}. {_GO_ON}") from error
        _count(carried, answer)
        tell(carried.experiences)
    return carried


_GO_ON = "Mend that (bus.max_experience_bytes is the size of the stream) and go on with --append"


def _count(carried: Carried, answer: Answer) -> None:
    if isinstance(answer, GroupSampled):
        carried.groups += 1
        carried.experiences += len(answer.experiences)
    else:
        carried.abandoned += 1


def _done(carried: Carried) -> str:
    return f"{carried.experiences} experiences and {carried.abandoned} abandoned tasks"
