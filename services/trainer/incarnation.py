"""Which life of the trainer this is, and its fence: once another has begun, this one announces and commits nothing.

The number is taken by compare-and-set. So is the record of the step from which it goes on, by which what a superseded
trainer has still written is told from what belongs to the run.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable

from bus.errors import RevisionConflict
from bus.port import Bus
from bus.subjects import Stream
from schemas.message import Message
from schemas.state import IncarnationTaken, Resumed
from schemas.weights import WeightsAnnounced
from services.runtime.context import Superseded
from services.runtime.keys import INCARNATION
from services.trainer.ledger import Ledger


class Incarnation:
    """One life of the trainer of a run."""

    def __init__(self, bus: Bus, trainer: str, number: int, lineage: tuple[Resumed, ...]) -> None:
        self._bus = bus
        self._trainer = trainer
        self.number = number
        self.lineage = lineage

    async def goes_on_from(self, step: int) -> None:
        """Record the step at which this life begins: later steps of earlier lives are not part of the run any more.

        Raises:
            Superseded: another has begun meanwhile.
        """
        lineage = (*self.lineage, Resumed(incarnation=self.number, step=step))
        while True:
            held = await self._bus.get(INCARNATION)
            self._assert_newest(held.message if held else None)
            taken = self._taken(lineage)
            with contextlib.suppress(RevisionConflict):
                await self._bus.swap(INCARNATION, taken, held.revision if held else 0)
                self.lineage = lineage
                return

    async def assert_current(self) -> None:
        """Raises `Superseded` when another trainer has begun this run."""
        held = await self._bus.get(INCARNATION)
        self._assert_newest(held.message if held else None)

    async def publish(self, message: Message) -> None:
        """Publish on the weights stream, unless another trainer has begun by the time that it is stored.

        Raises:
            Superseded: one has.
        """
        while True:
            last = (await self._bus.state(Stream.WEIGHTS)).last
            await self.assert_current()
            with contextlib.suppress(RevisionConflict):  # somebody has published since: look again
                await self._bus.publish_next(message, after=last)
                return

    async def guard(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do what only the newest trainer may; what fails because another did it first is told as that.

        Raises:
            Superseded: another has begun.
        """
        await self.assert_current()
        try:
            await act()
        except OSError:
            await self.assert_current()
            raise

    def _taken(self, lineage: tuple[Resumed, ...]) -> IncarnationTaken:
        return IncarnationTaken(incarnation=self.number, trainer=self._trainer, taken_at=time.time(), lineage=lineage)

    def _assert_newest(self, held: Message | None) -> None:
        if isinstance(held, IncarnationTaken) and held.incarnation > self.number:
            raise Superseded(
                f"trainer incarnation {held.incarnation} ({held.trainer}) has begun this run since; this one is "
                f"{self.number}, so it announces and commits nothing more and ends"
            )


async def begin(bus: Bus, trainer: str, on_disk: Ledger) -> Incarnation:
    """Take the next number, after all that the bus and the checkpoints on disk know of. What was announced counts too:
    the key may have been overwritten by garbage, and a number that came twice would order versions wrongly."""
    while True:
        held, newest = await bus.get(INCARNATION), await bus.last(Stream.WEIGHTS)
        before = held.message if held and isinstance(held.message, IncarnationTaken) else None
        announced = newest.message.weights.incarnation if newest and isinstance(newest.message, WeightsAnnounced) else 0
        number = max(before.incarnation if before else 0, on_disk.incarnation, announced) + 1
        lineage = before.lineage if before else on_disk.lineage
        begun = Incarnation(bus, trainer, number, lineage)
        taken = IncarnationTaken(incarnation=number, trainer=trainer, taken_at=time.time(), lineage=lineage)
        with contextlib.suppress(RevisionConflict):
            await bus.swap(INCARNATION, taken, held.revision if held else 0)
            return begun
