"""The state of a run at one moment."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bus.port import Bus, StreamState
from bus.subjects import Stream
from schemas.state import MemberSeen, ReleaseProgress, TrainProgress
from schemas.weights import WeightsAnnounced
from services.runtime.keys import MEMBERS, RELEASE, TRAIN

_SHOWN_STREAMS = (Stream.TASKS, Stream.EXPERIENCES, Stream.WEIGHTS, Stream.METRICS, Stream.QUARANTINE)


@dataclass(frozen=True)
class Snapshot:
    """Members, versions, depths, step, reward and staleness of a run at `at` (seconds since the epoch)."""

    run: str
    at: float
    release: ReleaseProgress | None
    train: TrainProgress | None
    newest: WeightsAnnounced | None
    members: tuple[MemberSeen, ...]
    streams: dict[str, StreamState] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.train.step if self.train else 0

    @property
    def total_steps(self) -> int | None:
        """The steps of the whole run, as far as they are known."""
        if self.train and self.train.total_steps:
            return self.train.total_steps
        return self.release.total_batches if self.release else None

    @property
    def tokens_sampled(self) -> float:
        return sum(member.detail.get("tokens_sampled", 0.0) for member in self.members if member.service == "explorer")

    @property
    def phase(self) -> str:
        return self.release.phase if self.release else "starting"

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `trinity status --json`."""
        train, release = self.train, self.release
        return {
            "run": self.run,
            "at": self.at,
            "phase": self.phase,
            "waiting_for": release.waiting_for if release else "",
            "step": self.step,
            "total_steps": self.total_steps,
            "version": self.newest.weights.version if self.newest else None,
            "incarnation": self.newest.weights.incarnation if self.newest else None,
            "reward": train.reward if train else None,
            "staleness": train.staleness if train else None,
            "tasks": {
                "released": release.released if release else 0,
                "total": release.total_tasks if release else None,
                "answered": train.answered if train else 0,
            },
            "experiences": train.counts.model_dump() if train else {},
            "streams": {name: asdict(state) for name, state in self.streams.items()},
            "members": [member.model_dump(mode="json") for member in self.members],
        }


async def snapshot(bus: Bus) -> Snapshot:
    """Ask the bus for everything that a `Snapshot` holds."""
    release, train = await bus.get(RELEASE), await bus.get(TRAIN)
    newest = await bus.last(Stream.WEIGHTS)
    members = [entry.message for entry in await bus.entries(MEMBERS)]
    return Snapshot(
        run=bus.run,
        at=time.time(),
        release=release.message if release and isinstance(release.message, ReleaseProgress) else None,
        train=train.message if train and isinstance(train.message, TrainProgress) else None,
        newest=newest.message if newest and isinstance(newest.message, WeightsAnnounced) else None,
        members=tuple(member for member in members if isinstance(member, MemberSeen)),
        streams={str(stream): await bus.state(stream) for stream in _SHOWN_STREAMS},
    )
