"""The experience stream into the run's stores: every experience once, in order, whatever dies when.

A store says itself how far it is. A store that is locked, full or away holds up nobody: it is waited for, and catches
up. What all stores have is told in the run's key-value store, so that the trainer frees nothing before.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from bus.port import Delivery
from bus.subjects import Stream
from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.state import StoreProgress, TrainProgress
from services.account.table import abandoned_row, row
from services.monitor.portions import in_thread, portions
from services.runtime.context import Context
from services.runtime.keys import STORED, TRAIN
from services.store.errors import StoreBusy, StoreError
from services.store.messages import Row
from services.store.port import Store

log = structlog.get_logger()

_READ_AHEAD = 64
_TOKENS_PER_WRITE = 2_000_000
_IDLE_S = 0.5
_TRY_AGAIN_S = 1.0
_SAY_AGAIN_S = 30.0


class Storing:
    """Keeps one store abreast of the stream."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context = context
        self._bus = context.bus
        self._store = store
        self._said_at = float("-inf")
        self._is_open = False
        self._taken = 0
        self.waits_for = ""

    @property
    def position(self) -> int:
        """The last sequence that is stored for good; 0 until that is known."""
        return self._store.position if self._is_open else 0

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            StoreError: the store is that of another run, or of another stream of this one.
        """
        await self._patiently(self._store.open, self._bus.run)
        self._is_open, self._taken = True, self._store.position
        await self._check_stream()
        log.info("experiences_storing", store=self._store.place.shown, from_sequence=self.position + 1)
        gathered: asyncio.Queue[Delivery] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(self._read(gathered))
        try:
            async for portion in portions(gathered, reading, _IDLE_S, _tokens, _TOKENS_PER_WRITE):
                await self._write(portion)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def settle(self) -> None:
        """Store for good what is held, and say of it what the weights hold, if that can be done now."""
        if not self._is_open:
            return
        try:
            await in_thread(self._store.settle)
            await in_thread(self._store.note_consumed, await self._consumed_below())
        except StoreBusy as error:
            log.warning("store_left_behind", store=self._store.place.shown, reason=str(error))

    def close(self) -> None:
        self._store.close()

    async def _read(self, gathered: asyncio.Queue[Delivery]) -> None:
        async for delivery in self._bus.read(Stream.EXPERIENCES, start=self.position + 1):
            await gathered.put(delivery)

    async def _write(self, portion: Sequence[Delivery]) -> None:
        """Write what came; with nothing, what the store holds as soon as it may."""
        if portion:
            self._taken = portion[-1].sequence
        rows = [each for delivery in portion for each in rows_of(delivery)]
        if portion or self._store.held:
            await self._patiently(self._store.write, rows, self._taken)
        if not portion and self._store.held and await self._context.phase() == "finished":
            await self._patiently(self._store.settle)
        await self._patiently(self._store.note_consumed, await self._consumed_below())

    async def _consumed_below(self) -> int:
        found = await self._bus.get(TRAIN)
        return found.message.sequence_floor if found and isinstance(found.message, TrainProgress) else 1

    async def _patiently(self, act: Callable[..., None], *arguments: object) -> None:
        """Do it, as often as it takes."""
        while True:
            try:
                await in_thread(act, *arguments)
            except StoreBusy as error:
                self._say(str(error))
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                break
        if self.waits_for:
            log.info("store_is_back", store=self._store.place.shown, position=self.position)
            self.waits_for = ""

    def _say(self, reason: str) -> None:
        self.waits_for = reason
        if time.monotonic() - self._said_at > _SAY_AGAIN_S:
            self._said_at = time.monotonic()
            log.warning("waiting_for_store", reason=reason, doing="the stream keeps what comes; it is stored then")

    async def _check_stream(self) -> None:
        """
        Raises:
            StoreError: the store is further than the stream.
        """
        stream = await self._bus.state(Stream.EXPERIENCES)
        if self.position > stream.last:
            raise StoreError(
                f"{self._store.place.shown} holds the experiences of {self._bus.run} up to sequence {self.position}, "
                f"and the stream on this bus ends at {stream.last}: it is another stream. Choose another path, or "
                "another name for the run"
            )
        if stream.first > self.position + 1:
            log.error(
                "experiences_not_stored",
                store=self._store.place.shown,
                sequences=f"{self.position + 1} to {stream.first - 1}",
                reason="they were freed before the store was configured: buffer.retain=all keeps everything",
            )


class Stored:
    """All stores of a run together."""

    def __init__(self, context: Context, stores: Sequence[Store]) -> None:
        self._context = context
        self._storings = [Storing(context, store) for store in stores]
        self._said: tuple[int, str] | None = None

    async def run(self) -> None:
        """Keep all stores abreast, until cancelled.

        Raises:
            StoreError: one of them is not this run's.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for storing in self._storings:
                    group.create_task(storing.run())
                group.create_task(self._tell())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def is_abreast(self) -> bool:
        """Whether every message of the stream is in every store."""
        stream = await self._context.bus.state(Stream.EXPERIENCES)
        return stream.messages == 0 or self._position() >= stream.last

    async def close(self) -> None:
        """Store what is held, and say how far that is."""
        for storing in self._storings:
            await storing.settle()
            storing.close()

    def _position(self) -> int:
        return min((storing.position for storing in self._storings), default=0)

    async def _tell(self) -> None:
        """Say how far the stores are, as that changes: the trainer keeps what is not stored."""
        while True:
            waits_for = next((storing.waits_for for storing in self._storings if storing.waits_for), "")
            now = (self._position(), waits_for)
            if now != self._said:
                progress = StoreProgress(sequence=now[0], waiting_for=now[1], updated_at=time.time())
                await self._context.bus.put(STORED, progress)
                self._said = now
                self._context.member.detail = {"stored_sequence": float(now[0])}
                self._context.member.state = f"waiting for a store: {waits_for}" if waits_for else "writing"
            await asyncio.sleep(_IDLE_S)


def rows_of(delivery: Delivery) -> list[Row]:
    """The rows of one message; none where it cannot be read."""
    message = delivery.message
    if isinstance(message, GroupSampled):
        return [row(delivery.sequence, message, each, delivery.stored_at) for each in message.experiences]
    if isinstance(message, TaskAbandoned):
        return [abandoned_row(delivery.sequence, message, delivery.stored_at)]
    return []


def _tokens(delivery: Delivery) -> int:
    message = delivery.message
    return sum(len(each.tokens) for each in message.experiences) if isinstance(message, GroupSampled) else 0
