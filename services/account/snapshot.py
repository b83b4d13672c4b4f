"""The state of a run at one moment."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bus.port import Bus, StreamState
from bus.subjects import Stream
from schemas.state import MemberSeen, ReleaseProgress, TrainProgress
from schemas.weights import WeightsAnnounced
from services.runtime.keys import MEMBERS, RELEASE, TRAIN

NEARLY_FULL = 0.9
_MIB = 2**20
_DECIDES = {
    str(Stream.EXPERIENCES): (
        "explorers wait when it is full. bus.max_experience_bytes is the limit; buffer.retain decides how much a "
        "checkpoint leaves, trainer.save_interval when there is one"
    ),
}
"""Of the streams that refuse new messages at a limit, what decides how full they are."""

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
    def tokens_trained(self) -> float:
        return float(self.train.counts.tokens_trained) if self.train else 0.0

    @property
    def is_unscored(self) -> bool:
        """Whether the run learns, and nothing that it learns from has a reward: it trains on rows of data."""
        return self.train is not None and self.train.reward is None and self.train.loss is not None

    @property
    def phase(self) -> str:
        """Of the release; a replay has none, and trains from the start."""
        if self.release is not None:
            return self.release.phase
        return "training" if self.train is not None else "starting"

    @property
    def quarantined(self) -> int:
        """Messages in the quarantine now."""
        held = self.streams.get(str(Stream.QUARANTINE))
        return held.messages if held else 0

    @property
    def full_streams(self) -> tuple[str, ...]:
        """The streams that publishers will soon have to wait for."""
        return tuple(name for name, state in self.streams.items() if name in _DECIDES and _share(state) > NEARLY_FULL)

    @property
    def notices(self) -> tuple[str, ...]:
        """What waits or is full, and why, in words."""
        said = [
            f"{service} waits: {progress.waiting_for}"
            for service, progress in (("trainer", self.train), ("synchronizer", self.release))
            if progress is not None and progress.waiting_for
        ]
        return (*said, *(_fullness(name, self.streams[name]) for name in self.full_streams))

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
            "loss": train.loss if train else None,
            "staleness": train.staleness if train else None,
            "tasks": {
                "released": release.released if release else 0,
                "total": release.total_tasks if release else None,
                "answered": train.answered if train else 0,
            },
            "experiences": train.counts.model_dump() if train else {},
            "quarantined": self.quarantined,
            "trainer_waiting_for": train.waiting_for if train else "",
            "full_streams": list(self.full_streams),
            "notices": list(self.notices),
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


def _share(state: StreamState) -> float:
    """How much of its limit a stream takes; 0 where it has none."""
    return state.size_bytes / state.limit_bytes if state.limit_bytes else 0.0


def _fullness(name: str, state: StreamState) -> str:
    held, limit = state.size_bytes / _MIB, (state.limit_bytes or 0) / _MIB
    return f"stream {name} is {_share(state):.0%} full ({held:.1f} of {limit:.1f} MiB): {_DECIDES[name]}"
