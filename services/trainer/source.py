"""Where a trainer's experiences come from: the stream of its own run, that of another run which it replays, rows of
data, or what an earlier run has stored."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from bus.jetstream import connect
from bus.permissions import Role
from bus.port import Bus, Delivery
from bus.subjects import Stream
from schemas.state import ReleaseProgress
from services.config.rows import ExperienceSource
from services.runtime.bus_access import settings
from services.runtime.context import Context
from services.runtime.keys import LEADER, RELEASE
from services.trainer.config import ReplayConfig
from services.trainer.offline.formatting import formatter_of
from services.trainer.offline.stream import RowStream
from services.trainer.stored import stored_stream


class Source(Protocol):
    """An experience stream, in order."""

    @property
    def run(self) -> str:
        """The run whose stream it is."""

    @property
    def steps(self) -> int | None:
        """The most optimizer steps that the whole stream makes, where that is known before it is read."""

    def read(self, start: int) -> AsyncIterator[Delivery]:
        """From sequence `start` on; ends where nothing more is to be trained on."""

    def again(self, start: int) -> AsyncIterator[Delivery]:
        """What is there from sequence `start` on, at full speed: for what was read before."""

    def rule(self, delivery: Delivery) -> str | None:
        """The rule by which a delivery, though it is whole, is not trained on; None where it is."""

    async def is_over(self, answered_floor: int, read: int) -> bool:
        """Whether nothing more will come, where all tasks below `answered_floor` are answered and `read` was the last
        sequence."""

    async def close(self) -> None: ...


class OwnStream:
    """The stream that the explorers of this run fill."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def run(self) -> str:
        return self._context.bus.run

    @property
    def steps(self) -> int | None:
        return None

    def rule(self, delivery: Delivery) -> str | None:
        return None

    def read(self, start: int) -> AsyncIterator[Delivery]:
        return self._context.bus.read(Stream.EXPERIENCES, start=start)

    def again(self, start: int) -> AsyncIterator[Delivery]:
        return self._context.bus.read(Stream.EXPERIENCES, start=start, follow=False)

    async def is_over(self, answered_floor: int, read: int) -> bool:
        progress = await self._context.release()
        if progress is None or progress.phase == "releasing" or progress.total_tasks is None:
            return False
        leader = await self._context.bus.lease_holder(LEADER)
        is_said_now = leader is not None and leader.term == progress.term  # an earlier leader may have planned less
        return is_said_now and answered_floor >= progress.total_tasks

    async def close(self) -> None:
        """The bus is the service's."""


class ReplayedStream:
    """A part of another run's stream, read without leaving a trace in that run."""

    def __init__(self, bus: Bus, replay: ReplayConfig, end: int) -> None:
        self._bus = bus
        self._replay = replay
        self._end = end
        self._is_read = False

    @property
    def run(self) -> str:
        return self._replay.source

    @property
    def steps(self) -> int | None:
        return None

    def rule(self, delivery: Delivery) -> str | None:
        return None

    async def read(self, start: int) -> AsyncIterator[Delivery]:
        begun, first = time.time(), None
        async for delivery in self._deliveries(start):
            if self._replay.pace == "live":
                first = first or delivery.stored_at
                await asyncio.sleep(max(0.0, delivery.stored_at - first - (time.time() - begun)))
            yield delivery
        self._is_read = True

    def again(self, start: int) -> AsyncIterator[Delivery]:
        return self._bus.read(Stream.EXPERIENCES, start=start, follow=False)

    async def _deliveries(self, start: int) -> AsyncIterator[Delivery]:
        async for delivery in self._bus.read(Stream.EXPERIENCES, start=start, follow=self._replay.follow):
            if delivery.sequence > self._end and not self._replay.follow:
                return
            yield delivery

    async def is_over(self, answered_floor: int, read: int) -> bool:
        if not self._replay.follow:
            return self._is_read
        found = await self._bus.get(RELEASE)
        ended = found is not None and isinstance(found.message, ReleaseProgress) and found.message.phase == "finished"
        return ended and read >= (await self._bus.state(Stream.EXPERIENCES)).last

    async def close(self) -> None:
        await self._bus.close()


async def source_of(context: Context) -> Source:
    """What this trainer reads.

    Raises:
        BusUnavailable: the source of a replay is not there.
        BusRefused: it has no streams.
        DataError: the rows of data cannot be read.
        StoreError: the stored experiences cannot be found.
    """
    return await SOURCES[context.config.experience_source](context)


async def _own_stream(context: Context) -> Source:
    return OwnStream(context)


async def _replayed_stream(context: Context) -> Source:
    replay = context.config.replay
    assert replay is not None
    name = f"{context.member.name}-source"
    url = replay.source_url or context.bus.url
    reading = settings(context.config, Role.READER, replay.source)
    bus = await connect(url, replay.source, name=name, settings=reading, observes=True)
    last = (await bus.state(Stream.EXPERIENCES)).last
    return ReplayedStream(bus, replay, last if replay.to_sequence is None else min(last, replay.to_sequence))


async def _row_stream(context: Context) -> Source:
    config, buffer = context.config, context.config.buffer.trainer_input.experience_buffer
    assert buffer is not None
    assert config.row_schema is not None
    formatter = await asyncio.to_thread(formatter_of, config, "experience_buffer", buffer, config.row_schema)
    return RowStream(config, formatter)


async def _stored_stream(context: Context) -> Source:
    return stored_stream(context.config)


SOURCES: dict[ExperienceSource, Callable[[Context], Awaitable[Source]]] = {
    "stream": _own_stream,
    "replay": _replayed_stream,
    "rows": _row_stream,
    "store": _stored_stream,
}
