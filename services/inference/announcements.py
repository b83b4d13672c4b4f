"""Weight announcements as a service follows them: the newest first of all, then each as it comes."""

import asyncio
from collections.abc import AsyncIterator

from bus.port import Bus
from bus.subjects import Stream
from schemas.weights import WeightsAnnounced


async def announcements(bus: Bus, start: int | None = None) -> AsyncIterator[WeightsAnnounced]:
    """Announcements from stream sequence `start`; by default from the newest that there is."""
    if start is None:
        newest = await bus.last(Stream.WEIGHTS)
        start = newest.sequence if newest else 1
    async for delivery in bus.read(Stream.WEIGHTS, start=start):
        if isinstance(delivery.message, WeightsAnnounced):
            yield delivery.message


class Newest:
    """Holds the newest announcement, so that a slow reader skips those between."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._newest: WeightsAnnounced | None = None
        self._arrived = asyncio.Event()

    async def follow(self) -> None:
        """Read announcements until cancelled. Those of a superseded incarnation are passed over."""
        async for announced in announcements(self._bus):
            if self._newest is None or announced.weights.supersedes(self._newest.weights):
                self._newest = announced
                self._arrived.set()

    async def next(self) -> WeightsAnnounced:
        """The newest announcement that has not been returned yet."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._newest is None:
            raise RuntimeError("an arrival without an announcement")
        return self._newest
