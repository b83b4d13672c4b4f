"""The power of the bus's machine is cut while publishers are at work: with `sync_interval: always` no acknowledged
message is lost; with a relaxed interval the newest are, and what remains has no gaps.

The store lies on a file system in a file. At the cut the server stands still and that file is copied, unmounted and
unflushed: the copy holds what had reached the disk, and not what only the page cache knew.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bus.jetstream import JetStreamBus, connect
from bus.server import LocalServer
from bus.settings import KIB, MIB, BusSettings
from bus.subjects import Stream

RUN = "project/name"
SETTINGS = BusSettings(max_experience_bytes=64 * MIB, metrics_bytes=MIB, request_timeout_s=1.0)
IMAGE_BYTES, MAX_FILE_BYTES = 128 * MIB, 96 * MIB


@contextmanager
def mounted(image: Path, where: Path) -> Iterator[Path]:
    """The file system in `image` at `where`. Skips where nobody may mount one."""
    where.mkdir(parents=True)
    mount = subprocess.run(["mount", "-o", "loop", str(image), str(where)], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no file system in a file can be mounted: {mount.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An empty ext4 file system in a file."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system in a file")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(path)], check=True)
    return path


@dataclass
class Cut:
    """Sequences by ordinal: acknowledged when the disk was flushed by hand, and when the power was cut."""

    flushed: dict[int, int]
    acknowledged: dict[int, int]


async def cut(image: Path, copy: Path, sync_interval: str, said) -> Cut:
    """Publish without end, flush the file system once on the way, and later cut the power."""
    copy.parent.mkdir()
    acknowledged: dict[int, int] = {}
    with mounted(image, copy.parent / "before" / "store") as store:
        server = LocalServer(store, sync_interval=sync_interval, max_file_bytes=MAX_FILE_BYTES)
        await server.start()
        bus = await connect(server.url, RUN, name="publisher", settings=SETTINGS)
        await bus.declare()
        publishing = [asyncio.create_task(_publish(bus, said, acknowledged, first)) for first in range(8)]
        await _until(acknowledged, 500)
        flushed = dict(acknowledged)
        await asyncio.to_thread(subprocess.run, ["sync", "--file-system", str(store)], check=True)
        await _until(acknowledged, len(acknowledged) + 500)
        os.kill(server.pid, signal.SIGSTOP)
        found = Cut(flushed, dict(acknowledged))
        await asyncio.to_thread(subprocess.run, ["cp", "--sparse=always", str(image), str(copy)], check=True)
        os.kill(server.pid, signal.SIGKILL)
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        await bus.close()
        await server.stop()
    return found


async def _until(acknowledged: dict[int, int], count: int) -> None:
    while len(acknowledged) < count:
        await asyncio.sleep(0.002)


async def _publish(bus: JetStreamBus, said, acknowledged: dict[int, int], first: int) -> None:
    for ordinal in range(first, 1_000_000, 8):
        acknowledged[ordinal] = (await bus.publish(said.group(ordinal, "p" * 8 * KIB))).sequence


async def found_after(copy: Path) -> dict[int, int]:
    """Sequences by ordinal of the groups that a server on the copy knows: the first ones, without gaps."""
    with mounted(copy, copy.parent / "after" / "store") as store:
        server = LocalServer(store, max_file_bytes=MAX_FILE_BYTES)
        await server.start()
        bus = await connect(server.url, RUN, name="reader", settings=SETTINGS)
        try:
            found = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
        finally:
            await bus.close()
            await server.stop()
    assert [delivery.sequence for delivery in found] == list(range(1, len(found) + 1))
    return {delivery.message.task.ordinal: delivery.sequence for delivery in found}


async def test_with_sync_always_every_acknowledged_message_survives_a_power_cut(image, tmp_path, said):
    power = await cut(image, tmp_path / "cut" / "disk.img", "always", said)
    found = await found_after(tmp_path / "cut" / "disk.img")
    assert power.acknowledged.items() <= found.items()


async def test_with_a_relaxed_interval_a_power_cut_takes_only_what_was_not_flushed(image, tmp_path, said):
    power = await cut(image, tmp_path / "cut" / "disk.img", "2m", said)
    found = await found_after(tmp_path / "cut" / "disk.img")
    assert power.flushed.items() <= found.items()
    lost = power.acknowledged.keys() - found.keys()
    print(f"{len(power.acknowledged)} acknowledged, {len(power.flushed)} flushed, {len(lost)} lost")
    assert all(power.acknowledged[ordinal] > len(found) for ordinal in lost)
