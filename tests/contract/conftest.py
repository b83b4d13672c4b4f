"""A real nats-server for each test, on a free port, with a store of its own."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from bus.jetstream import JetStreamBus, connect
from bus.port import LeaseTerms
from bus.server import LocalServer
from bus.settings import BusSettings
from schemas.experiences import Experience, GroupSampled
from schemas.reports import MetricsReported
from schemas.state import LeaseHeld
from schemas.tasks import TaskIdentity, TaskReleased

RUN = "project/name"
SETTINGS = BusSettings(request_timeout_s=1.0, connect_timeout_s=5.0, terms=LeaseTerms(lease_s=1.0))

Join = Callable[..., Awaitable[JetStreamBus]]


class Said:
    """Messages for tests."""

    @staticmethod
    def task(ordinal: int = 0, taskset: str = "train", **row: Any) -> TaskReleased:
        identity = TaskIdentity(ordinal=ordinal, batch=ordinal // 4, taskset=taskset, epoch=0, index=ordinal)
        return TaskReleased(run=RUN, task=identity, repeat_times=2, workflow="math", row=row or {"q": "1+1"})

    @staticmethod
    def group(ordinal: int = 0, text: str = "", run: str = RUN, explorer: str = "explorer-0") -> GroupSampled:
        identity = TaskIdentity(ordinal=ordinal, batch=0, taskset="train", epoch=0, index=ordinal)
        experience = Experience(
            position=0,
            tokens=[1, 2, 3, ordinal],
            prompt_length=2,
            action_mask=[1, 1],
            logprobs=[-0.5, -0.25],
            token_versions=[0, 1],
            reward=1.0,
            response_text=text,
        )
        return GroupSampled(run=run, task=identity, repeat_times=1, explorer=explorer, experiences=(experience,))

    @staticmethod
    def metrics(step: int = 0) -> MetricsReported:
        return MetricsReported(run=RUN, service="trainer", source="trainer-0", step=step, values={"loss": 0.5})

    @staticmethod
    def held(holder: str = "me", term: int = 1) -> LeaseHeld:
        return LeaseHeld(holder=holder, term=term, renewed_at=0.0)


async def _eventually(claim: Callable[[], Any], within_s: float = 15.0) -> Any:
    """The first true value of `claim`, which may be a coroutine function."""
    deadline = time.monotonic() + within_s
    while True:
        value = claim()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s")
        await asyncio.sleep(0.01)


async def _first(deliveries: AsyncIterator[Any], count: int, within_s: float = 15.0) -> list[Any]:
    """The next `count` deliveries of a reader, which goes on existing."""
    async with asyncio.timeout(within_s):
        return [await anext(deliveries) for _ in range(count)]


async def _kill(server: LocalServer) -> None:
    """The server dies as by kill -9."""
    os.kill(server.pid, signal.SIGKILL)
    await _eventually(lambda: not server.is_running)


@pytest.fixture
def said() -> type[Said]:
    return Said


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    return _eventually


@pytest.fixture
def first() -> Callable[..., Awaitable[list[Any]]]:
    return _first


@pytest.fixture
def kill() -> Callable[[LocalServer], Awaitable[None]]:
    return _kill


@pytest.fixture
def settings() -> BusSettings:
    return SETTINGS


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    server = LocalServer(tmp_path / "store")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def join(server: LocalServer) -> AsyncIterator[Join]:
    """Connects one more member to the run."""
    members: list[JetStreamBus] = []

    async def joined(settings: BusSettings = SETTINGS, run: str = RUN, url: str = "") -> JetStreamBus:
        member = await connect(url or server.url, run, name=f"member-{len(members)}", settings=settings)
        assert isinstance(member, JetStreamBus)
        members.append(member)
        return member

    yield joined
    for member in members:
        await member.close()


@pytest.fixture
async def bus(join: Join) -> JetStreamBus:
    bus = await join()
    await bus.declare()
    return bus


@pytest.fixture
async def raw(server: LocalServer) -> AsyncIterator[Client]:
    """A plain client, for what no service would do."""
    client = await nats.connect(server.url, allow_reconnect=False)
    yield client
    if not client.is_closed:
        await client.close()
