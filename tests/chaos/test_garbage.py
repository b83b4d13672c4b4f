"""Garbage in places where it does more than to be garbage: it takes no tasks from their explorers, and it silences
nobody whose words it comes before."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from bus.jetstream import connect
from bus.port import Bus, LeaseTerms
from bus.server import LocalServer
from bus.settings import BusSettings
from bus.subjects import MESSAGE_IDS, Stream, task_subject
from schemas.state import IncarnationTaken
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightsAnnounced, WeightVersion
from services.runtime.keys import LEADER, RELEASE
from services.synchronizer.progress import Progress
from services.trainer.incarnation import begin
from services.trainer.ledger import Ledger

RUN = "project/name"


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    server = LocalServer(tmp_path / "bus" / "store")
    await server.start()
    joined = await connect(server.url, RUN, name="test", settings=BusSettings(terms=LeaseTerms(lease_s=1.0)))
    await joined.declare()
    yield joined
    await joined.close()
    await server.stop()


def _task(ordinal: int) -> TaskReleased:
    identity = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
    return TaskReleased(run=RUN, task=identity, repeat_times=1, workflow="math", row={})


async def _throw(bus: Bus, subject: str, message_id: str | None = None) -> None:
    client = await nats.connect(bus.url)
    headers = {"Nats-Msg-Id": message_id} if message_id else None
    await client.jetstream().publish(subject, b"garbage", headers=headers)
    await client.close()


async def _pulled(queue, within_s: float = 10.0) -> TaskReleased:
    async with asyncio.timeout(within_s):
        while True:
            for delivery in await queue.pull(1, 1.0):
                await delivery.ack()
                return delivery.message


async def test_garbage_below_the_subject_of_a_taskset_takes_no_task_from_it(bus) -> None:
    queue = await bus.queue()
    await bus.publish(_task(0))
    assert await _pulled(queue) == _task(0)
    await _throw(bus, task_subject(RUN, "sums").replace(".tasks.", ".tasks.stray."))
    async with asyncio.timeout(10):
        while (await bus.state(Stream.QUARANTINE)).messages == 0:
            assert await queue.pull(1, 0.2) == []
    await bus.publish(_task(1))
    assert await _pulled(queue) == _task(1)


async def test_weights_whose_id_was_taken_by_garbage_are_announced_all_the_same(bus) -> None:
    trainer = await begin(bus, "trainer", Ledger())
    announced = WeightsAnnounced(
        run=RUN,
        weights=WeightVersion(incarnation=1, version=3),
        uri="weights",
        files=(),
        dtype="float32",
        step_ended_at=0.0,
        announced_at=0.0,
    )
    await _throw(
        bus, f"trinity.{task_subject(RUN, 'x').split('.')[1]}.weights", MESSAGE_IDS[WeightsAnnounced](announced)
    )
    await trainer.publish(announced)
    newest = await bus.last(Stream.WEIGHTS)
    assert newest is not None
    assert newest.message == announced
    assert (await bus.state(Stream.WEIGHTS)).messages == 2


async def test_a_message_under_the_key_of_another_is_written_over_by_whoever_owns_it(bus) -> None:
    stray = IncarnationTaken(incarnation=9, trainer="nobody", taken_at=0.0)
    await bus.put("lease.synchronizer", stray)
    await bus.put(RELEASE, stray)
    async with asyncio.timeout(10):
        lease = await bus.lease(LEADER, "leader", 5.0)
    progress = Progress(bus, lease)
    await progress.take_over()
    await progress.save(released=4)
    held = await bus.get(RELEASE)
    assert (held.message.released, held.message.term) == (4, lease.term)
    await lease.release()
