"""What a running service is given: its configuration, the bus, its membership, its metrics and the wish to stop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.port import Bus
from schemas.reports import MetricsReported
from schemas.state import Phase, ReleaseProgress
from services.config.tree import RunConfig
from services.runtime.activities import Activities
from services.runtime.keys import RELEASE
from services.runtime.member import Member

_OLD_WORD_S = 60.0


class Superseded(Exception):
    """Another process has taken this one's part of the run; this one must say nothing more, and says who has."""


@dataclass
class Context:
    """The surroundings of one service. `hear_signals` is for who has started a library that takes the signals for
    itself: after it, SIGTERM and SIGINT set `stopping` again."""

    config: RunConfig
    bus: Bus
    member: Member
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    activities: Activities = field(default_factory=Activities)
    hear_signals: Callable[[], None] = lambda: None

    async def report(
        self,
        step: int,
        values: dict[str, float] | None = None,
        samples: dict[str, list[float]] | None = None,
        parts: int = 0,
    ) -> None:
        """Publish metrics of one step, with the time spent since the last report."""
        await self.bus.publish(
            MetricsReported(
                run=self.bus.run,
                service=self.member.service,
                source=self.member.name,
                step=step,
                values=values or {},
                samples={name: tuple(numbers) for name, numbers in (samples or {}).items()},
                spans=self.activities.drain(),
                parts=parts,
                at=time.time(),
            )
        )

    async def release(self) -> ReleaseProgress | None:
        """How far the synchronizer has released, if there has been one."""
        found = await self.bus.get(RELEASE)
        return found.message if found and isinstance(found.message, ReleaseProgress) else None

    async def phase(self) -> Phase | None:
        """The phase of the run. That it was finished before this member came may be about to change: a synchronizer
        that starts beside it may find more to release. Such an old word counts only after a while."""
        progress = await self.release()
        if progress is None:
            return None
        is_old = progress.phase == "finished" and progress.updated_at < self.member.started_at
        return "draining" if is_old and time.time() - self.member.started_at < _OLD_WORD_S else progress.phase

    async def wait(self, seconds: float) -> None:
        """Sleep, or less when the service is asked to stop."""
        try:
            await asyncio.wait_for(self.stopping.wait(), timeout=seconds)
        except TimeoutError:
            return
