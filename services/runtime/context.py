"""What a running service is given: its configuration, the bus, its membership, its metrics and the wish to stop."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.port import Bus
from schemas.reports import MetricsReported
from schemas.state import Phase, ReleaseProgress, RunDeclared, TrainProgress
from services.config.secrets import shareable
from services.config.tree import RunConfig
from services.runtime.activities import Activities
from services.runtime.keys import DECLARED, RELEASE, TRAIN
from services.runtime.member import Member

LAUNCHED_AT = "TRINITY_LAUNCHED_AT"
"""The variable by which a launcher tells its services when it began, in seconds since the epoch."""

_OLD_WORD_S = 60.0
_LENGTH = ("buffer", "replay")
"""The sections of a configuration without `total_steps` that decide how long the run is."""


class Uncorrected(Exception):
    """What the user has given cannot be worked with: started again, a service would meet it again."""


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
        """The phase of the run. That it was finished before this member came may be about to change: who is started
        beside it may find more to do. Such an old word counts after a while, or where nobody asks for more."""
        progress = await self.release()
        if progress is None:
            return None
        is_old = progress.phase == "finished" and progress.updated_at < self._began_at()
        if not is_old or time.time() - self.member.started_at > _OLD_WORD_S or await self._asks_for_no_more():
            return progress.phase
        return "draining"

    def _began_at(self) -> float:
        """When this member came, or the launcher that has started it: of a member that is started again, the first."""
        return float(os.environ.get(LAUNCHED_AT, self.member.started_at))

    async def _asks_for_no_more(self) -> bool:
        """Whether the run is all that this configuration asks for. How long its epochs are now is the leader's to say,
        where one is started beside us."""
        steps = self.config.total_steps
        if steps is not None:
            train = await self.bus.get(TRAIN)
            return train is not None and isinstance(train.message, TrainProgress) and train.message.step >= steps
        if LAUNCHED_AT in os.environ and (self.config.is_whole or self.config.mode in ("explore", "serve")):
            return False
        declared, own = await self.bus.get(DECLARED), shareable(self.config)
        if declared is None or not isinstance(declared.message, RunDeclared):
            return False
        return all(declared.message.config.get(key) == own[key] for key in _LENGTH)

    async def wait(self, seconds: float) -> None:
        """Sleep, or less when the service is asked to stop."""
        try:
            await asyncio.wait_for(self.stopping.wait(), timeout=seconds)
        except TimeoutError:
            return
