"""At every limit of the bus publishers wait, say what to do, and go on: nothing is lost, and each is stored once."""

import asyncio
import dataclasses
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.following import AHEAD_BYTES
from bus.jetstream import JetStreamBus, connect
from bus.server import LocalServer
from bus.settings import GIB, KIB, MIB, BusSettings
from bus.subjects import Stream, stream_name

RUN = "project/name"
SMALL = BusSettings(
    max_experience_bytes=8 * MIB, metrics_bytes=MIB, request_timeout_s=1.0, connect_timeout_s=5.0, spill_bytes=MIB
)


@contextmanager
def small_disk(where: Path, size_mib: int) -> Iterator[Path]:
    """A memory file system of its own size at `where`. Skips where nobody may mount one."""
    where.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(where)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@asynccontextmanager
async def alone(
    store: Path, max_file_bytes: int, settings: BusSettings
) -> AsyncIterator[tuple[LocalServer, JetStreamBus]]:
    """A server with its store there, and the one bus that uses it."""
    server = LocalServer(store, max_file_bytes=max_file_bytes)
    await server.start()
    try:
        bus = await connect(server.url, RUN, name="publisher", settings=settings)
        try:
            await bus.declare()
            yield server, bus
        finally:
            await bus.close()
    finally:
        await server.stop()


def waiting(logs) -> list[dict[str, str]]:
    return [line for line in logs if line["event"] == "publish_waiting"]


async def ordinals(bus) -> list[int]:
    return [delivery.message.task.ordinal async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]


async def test_through_a_full_stream_every_group_of_every_publisher_passes_once_and_in_order(
    join, said, settings, first
):
    narrow = dataclasses.replace(settings, max_experience_bytes=400 * KIB)
    publishers = [await join(narrow) for _ in range(2)]
    trainer = await join(narrow)
    await trainer.declare()
    shares = [[said.group(ordinal, "x" * 50 * KIB) for ordinal in range(half, 60, 2)] for half in (0, 1)]
    heard = []
    with capture_logs() as logs:
        publishing = asyncio.gather(
            *(bus.publish_all(share, window=8) for bus, share in zip(publishers, shares, strict=True))
        )
        reading = trainer.read(Stream.EXPERIENCES)
        while len(heard) < 60:
            heard += await first(reading, 3)
            await trainer.purge(Stream.EXPERIENCES, heard[-1].sequence + 1)
        stored = await asyncio.wait_for(publishing, 10.0)
    assert waiting(logs)
    assert "bus.max_experience_bytes" in waiting(logs)[0]["todo"]
    assert sorted(delivery.message.task.ordinal for delivery in heard) == list(range(60))
    assert [delivery.sequence for delivery in heard] == list(range(1, 61))
    assert sorted(each.sequence for share in stored for each in share) == list(range(1, 61))


async def test_a_store_that_has_reached_max_file_refuses_and_goes_on_when_room_is_made(tmp_path, said, eventually):
    groups = [said.group(ordinal, "y" * 2 * MIB + str(ordinal)) for ordinal in range(4)]
    with small_disk(tmp_path / "bus" / "store", 128) as store:
        async with alone(store, 24 * MIB, SMALL) as (_, bus):
            unclaimed = [await bus.put_blob(bytes([number]) * 2 * MIB) for number in range(10)]
            with capture_logs() as logs:
                spilling = asyncio.create_task(bus.publish_all(groups))
                await eventually(lambda: waiting(logs))
                assert "max_file" in waiting(logs)[0]["todo"]
                assert not spilling.done()
                for digest in unclaimed:
                    await bus.drop_blob(digest)
                stored = await asyncio.wait_for(spilling, 20.0)
            assert sorted(each.sequence for each in stored) == [1, 2, 3, 4]
            assert sorted(await ordinals(bus)) == [0, 1, 2, 3]


async def test_a_disk_that_is_full_before_max_file_loses_nothing_when_room_is_made(tmp_path, said, eventually, kill):
    settings = dataclasses.replace(SMALL, max_experience_bytes=64 * MIB)
    acknowledged: dict[int, int] = {}

    async def publish(bus: JetStreamBus, ordinal: int) -> None:
        acknowledged[ordinal] = (await bus.publish(said.group(ordinal, "z" * 300 * KIB))).sequence

    with small_disk(tmp_path / "bus" / "store", 12) as store:
        async with alone(store, GIB, settings) as (server, bus):
            with capture_logs() as logs:
                publishing = asyncio.gather(*(publish(bus, ordinal) for ordinal in range(60)))
                await eventually(lambda: [line for line in waiting(logs) if "restart the server" in line["todo"]], 30.0)
            before = dict(acknowledged)
            assert 0 < len(before) < 60
            subprocess.run(["mount", "-o", "remount,size=128m", str(store)], check=True)
            await kill(server)
            await server.start()
            await asyncio.wait_for(publishing, 30.0)
            heard = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
            assert {delivery.message.task.ordinal: delivery.sequence for delivery in heard} == acknowledged
            assert len(heard) == len(acknowledged) == 60
            assert acknowledged.items() >= before.items()


async def test_a_group_beyond_max_payload_comes_back_whole_after_the_server_was_killed(join, said, server, kill):
    settings = BusSettings(request_timeout_s=1.0)
    publisher, reader = await join(settings), await join(settings)
    await publisher.declare()
    message = said.group(0, "w" * (2 * settings.max_payload_bytes + 1))
    await publisher.publish(message)
    await kill(server)
    await server.start()
    assert [each.message async for each in reader.read(Stream.EXPERIENCES, follow=False)] == [message]
    assert (await publisher.publish(message)).is_duplicate
    assert (await reader.state(Stream.EXPERIENCES)).size_bytes < KIB


async def test_a_reader_that_stops_holds_little_and_misses_nothing(join, said, settings, raw, first, eventually):
    bus = await join(settings)
    await bus.declare()
    reading = bus.read(Stream.EXPERIENCES)
    size, total = 200 * KIB, 400
    publishing = asyncio.create_task(bus.publish_all([said.group(n, "s" * size) for n in range(total)], window=16))
    heard = await first(reading, 1)
    await publishing
    assert await on_its_way(raw, eventually) * size <= 2 * AHEAD_BYTES < total * size
    heard += await first(reading, total - 1)
    assert [each.message.task.ordinal for each in heard] == list(range(total))


async def test_a_reader_slower_than_its_publishers_holds_little_and_misses_nothing(join, said, settings, raw, first):
    bus = await join(settings)
    await bus.declare()
    reading = bus.read(Stream.EXPERIENCES)
    size, total = 200 * KIB, 400
    publishing = asyncio.create_task(bus.publish_all([said.group(n, "s" * size) for n in range(total)], window=16))
    heard, most_held = [], 0
    while len(heard) < total:
        heard += await first(reading, 10)
        most_held = max(most_held, await delivered(raw) - len(heard))
    await publishing
    assert [each.message.task.ordinal for each in heard] == list(range(total))
    assert most_held * size <= 2 * AHEAD_BYTES


async def delivered(raw) -> int:
    """How many messages the server has sent to the one reader."""
    (consumer,) = await raw.jetstream().consumers_info(stream_name(RUN, Stream.EXPERIENCES))
    return consumer.delivered.consumer_seq


async def on_its_way(raw, eventually) -> int:
    """How many messages the server has sent to the one reader, once it sends no more."""
    seen = [-1]

    async def is_steady() -> bool:
        seen.append(await delivered(raw))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    await eventually(is_steady)
    return seen[-1]


async def test_publishers_go_on_through_a_server_killed_again_and_again(join, said, server, kill, eventually):
    publishers = [await join() for _ in range(2)]
    await publishers[0].declare()
    acknowledged: dict[int, int] = {}

    async def publish(bus, ordinal: int) -> None:
        acknowledged[ordinal] = (await bus.publish(said.group(ordinal, "k" * 100 * KIB))).sequence

    async def work(bus, some) -> None:
        for ordinal in some:
            await publish(bus, ordinal)

    shares = [iter(range(half, 600, 2)) for half in (0, 1)]
    working = asyncio.gather(
        *(work(bus, share) for bus, share in zip(publishers, shares, strict=True) for _ in range(8))
    )
    for kills in range(1, 4):
        await eventually(lambda enough=100 * kills: len(acknowledged) > enough)
        await kill(server)
        await server.start()
    await asyncio.wait_for(working, 60.0)
    heard = [each async for each in publishers[0].read(Stream.EXPERIENCES, follow=False)]
    assert {each.message.task.ordinal: each.sequence for each in heard} == acknowledged
    assert len(heard) == len(acknowledged) == 600
