"""Past streams: groups with every field set, tombstones, and a real bus to carry them over."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from bus.jetstream import connect
from bus.port import Bus
from bus.server import LocalServer
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.trainer.checkpoints import Checkpoint
from services.trainer.ledger import Ledger, Numbers

RUN = "tests/past"

MakeGroup = Callable[..., GroupSampled]
MakeAbandoned = Callable[..., TaskAbandoned]
JoinRun = Callable[[str], Awaitable[Bus]]


def _identity(ordinal: int, taskset: str) -> TaskIdentity:
    return TaskIdentity(ordinal=ordinal, batch=ordinal // 2, taskset=taskset, epoch=1, index=ordinal)


def _experience(position: int, chance: np.random.Generator) -> Experience:
    length = int(chance.integers(1, 6))
    return Experience(
        position=position,
        tokens=chance.integers(0, 1000, 3 + length).astype(np.int32),
        prompt_length=3,
        action_mask=chance.integers(0, 2, length).astype(np.uint8),
        logprobs=-chance.random(length, np.float32),
        token_versions=chance.integers(0, 9, length).astype(np.int32),
        reward=float(chance.random()),
        metrics={"accuracy": float(position % 2), "format_score": 0.1},
        prompt_text=f"{position}+1=",
        response_text=str(position),
        is_truncated=bool(position % 2),
        step=position % 3,
        temperature=0.7,
    )


@pytest.fixture
def group() -> MakeGroup:
    def make(ordinal: int, size: int = 3, retry: int = 0, taskset: str = "sums", run: str = RUN) -> GroupSampled:
        chance = np.random.default_rng(ordinal)
        return GroupSampled(
            run=run,
            task=_identity(ordinal, taskset),
            repeat_times=size + 1,
            explorer="explorer_2",
            incarnation=3,
            experiences=tuple(_experience(position, chance) for position in range(size)),
            attempt=2,
            started_at=1_700_000_000.25,
            finished_at=1_700_000_001.5,
            tokenizer="sha256:abc",
            retry=retry,
        )

    return make


@pytest.fixture
def abandoned() -> MakeAbandoned:
    def make(ordinal: int, retry: int = 0, run: str = RUN) -> TaskAbandoned:
        return TaskAbandoned(
            run=run,
            task=_identity(ordinal, "sums"),
            repeat_times=4,
            explorer="explorer_1",
            attempts=4,
            error="no answer within 30 s",
            abandoned_at=1_700_000_002.75,
            retry=retry,
        )

    return make


@pytest.fixture
async def join(tmp_path: Path) -> AsyncIterator[JoinRun]:
    """The bus of a run on one real server, declared."""
    server = LocalServer(tmp_path / "bus" / "store", sync_interval="2m")
    await server.start()
    joined: list[Bus] = []

    async def begin(run: str) -> Bus:
        bus = await connect(server.url, run, name="test")
        await bus.declare()
        joined.append(bus)
        return bus

    yield begin
    for bus in joined:
        await bus.close()
    await server.stop()


@pytest.fixture
def checkpoint_of(tmp_path: Path) -> Callable[[int, int], Checkpoint]:
    """A checkpoint of a step, of which the ledger's floor is given."""

    def make(step: int, floor: int) -> Checkpoint:
        directory = tmp_path / f"global_step_{step}"
        directory.mkdir()
        ledger = Ledger(step=step, sequences=Numbers(floor=floor))
        (directory / "ledger.json").write_text(ledger.to_json(), encoding="utf-8")
        return Checkpoint(step, directory)

    return make
