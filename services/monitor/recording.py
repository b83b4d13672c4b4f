"""The metrics stream into the run's record: every report once, whatever dies when.

The stream is the truth. Whenever a record fails, it is opened again and the stream is read from its beginning; what
the record says that it has is left out. So a tracking server that is away or slow holds up nobody, and misses nothing.
"""

import asyncio
import time

import structlog

from bus.port import Bus, Delivery
from bus.subjects import Stream
from schemas.reports import MetricsReported
from services.monitor.gathering import Gathering
from services.monitor.portions import in_thread, portions
from services.monitor.record import ENTRIES_PER_SEQUENCE, Entry, Record

log = structlog.get_logger()

_READ_AHEAD = 256
_REPORTS_PER_WRITE = 128
_IDLE_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SAY_AGAIN_S = 30.0


class Recording:
    """Keeps one record abreast of the stream."""

    def __init__(self, bus: Bus, record: Record) -> None:
        self._bus = bus
        self._record = record
        self._gathering = Gathering()
        self._is_open = False
        self._said_at = float("-inf")
        self._moved_at = time.monotonic()
        self._held = 0
        self.position = 0
        """The last sequence of the stream that is recorded."""
        self.waits_for = ""

    async def run(self) -> None:
        """Until cancelled. Any failure of the record is told, and tried again."""
        pause_s = _FIRST_PAUSE_S
        while True:
            before = self._moved_at
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - a foreign library's failure is not the run's
                await self._failed(error)
            pause_s = _FIRST_PAUSE_S if self._moved_at > before else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    def waited_s(self) -> float:
        """For how long nothing could be recorded, though there was something."""
        return time.monotonic() - self._moved_at

    async def end(self, *, is_over: bool) -> None:
        """Record what never became whole where the run is over, and send all that is held."""
        if not self._is_open:
            return
        try:
            if is_over:
                await in_thread(self._record.write, self._gathering.flush(self.position))
            await in_thread(self._record.close)
        except Exception as error:  # noqa: BLE001 - a foreign library's failure is not the run's
            log.warning(
                "record_left_behind",
                record=self._record.shown,
                reason=reason(error),
                instead="the stream has it all: the same command again goes on from there",
            )

    async def _follow(self) -> None:
        """Write what is in the stream and what comes."""
        self._gathering, self.position, self._is_open = Gathering(), 0, False
        held = await in_thread(self._record.open)
        self._is_open = True
        self._held = held
        log.info("metrics_recording", record=self._record.shown, from_sequence=held // ENTRIES_PER_SEQUENCE + 1)
        gathered: asyncio.Queue[Delivery] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(self._read(gathered))
        try:
            async for portion in portions(gathered, reading, _IDLE_S, lambda delivery: 1, _REPORTS_PER_WRITE):
                await self._write(portion)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, gathered: asyncio.Queue[Delivery]) -> None:
        async for delivery in self._bus.read(Stream.METRICS):
            await gathered.put(delivery)

    async def _write(self, portion: list[Delivery]) -> None:
        if portion:
            entries = [entry for delivery in portion for entry in self._entries(delivery)]
            await in_thread(self._record.write, entries)
            self.position = portion[-1].sequence
        self._moved_at = time.monotonic()
        if self.waits_for:
            log.info("record_is_back", record=self._record.shown, position=self.position)
            self.waits_for = ""

    def _entries(self, delivery: Delivery) -> list[Entry]:
        entries: list[Entry] = []
        if isinstance(delivery.message, MetricsReported):
            entries += self._gathering.add(delivery.message, delivery.sequence)
        ended_at, number = divmod(self._held, ENTRIES_PER_SEQUENCE)
        if number and delivery.sequence == ended_at:  # the run has ended here before
            left = self._gathering.flush(ended_at)
            entries += left if number < ENTRIES_PER_SEQUENCE - 1 else []
        return entries

    async def _failed(self, error: Exception) -> None:
        self.waits_for = reason(error)
        if time.monotonic() - self._said_at > _SAY_AGAIN_S:
            self._said_at = time.monotonic()
            log.warning(
                "waiting_for_record",
                record=self._record.shown,
                reason=self.waits_for,
                doing="the stream keeps what comes; it is recorded then",
            )
        if self._is_open:
            self._is_open = False
            try:
                await in_thread(self._record.close)
            except Exception as failure:  # noqa: BLE001 - it is opened anew
                log.debug("record_not_closed", reason=reason(failure))


def reason(error: Exception) -> str:
    """The first line of what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
