"""A past run is read without a trace, a store has one server, and what is not there is told."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bus.errors import BusRefused
from bus.jetstream import connect
from bus.server import LocalServer
from bus.subjects import Stream
from services.config.tree import RunConfig
from services.replay.errors import ReplayError
from services.replay.opening import as_run, source_of, target_of


@pytest.fixture
def past(config) -> RunConfig:
    return RunConfig.model_validate(config | {"name": "past"})


def _bytes_of(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


async def _filled(past: RunConfig, group) -> None:
    async with target_of(past) as bus:
        for ordinal in range(3):
            await bus.publish(group(ordinal))


async def test_a_store_that_is_read_stays_as_it_is_byte_by_byte(past, group, tmp_path) -> None:
    await _filled(past, group)
    before = _bytes_of(past.run_dir)
    async with source_of(past, tmp_path / "one") as one, source_of(past, tmp_path / "two") as two:
        assert one.is_served_here
        for source in (one, two):
            read = [delivery.message async for delivery in source.bus.read(Stream.EXPERIENCES, follow=False)]
            assert read == [group(ordinal) for ordinal in range(3)]
    assert _bytes_of(past.run_dir) == before
    assert not (tmp_path / "one").exists()


async def test_a_copy_whose_server_dies_is_served_again(past, group, tmp_path) -> None:
    await _filled(past, group)
    async with source_of(past, tmp_path / "scratch") as source:
        found = subprocess.run(
            ["pgrep", "-f", str(tmp_path / "scratch" / "nats-server.conf")], capture_output=True, text=True, check=True
        )
        os.kill(int(found.stdout), signal.SIGKILL)
        read = [delivery.message async for delivery in source.bus.read(Stream.EXPERIENCES, follow=False)]
        assert read == [group(ordinal) for ordinal in range(3)]


async def test_a_run_on_a_bus_is_joined_and_what_it_cannot_read_stays_where_it_is(past, group, tmp_path) -> None:
    async with target_of(past) as bus:
        await bus.publish(group(0))
        client = bus._connection.client
        await client.jetstream().publish("trinity." + _token(past) + ".experiences.x", b"garbage")
        async with source_of(past, tmp_path / "scratch") as source:
            assert not source.is_served_here
            assert source.bus.url == bus.url
            read = [delivery.message async for delivery in source.bus.read(Stream.EXPERIENCES, follow=False)]
        assert read == [group(0), None]
        assert (await bus.state(Stream.QUARANTINE)).messages == 0


def _token(config: RunConfig) -> str:
    from bus.subjects import token

    return token(config.run_name)


async def test_a_run_that_has_left_nothing_is_named(past, tmp_path) -> None:
    with pytest.raises(ReplayError, match="run tests/past has left no store"):
        async with source_of(past, tmp_path / "scratch"):
            pass


async def test_a_store_of_other_runs_is_not_taken_for_this_one(past, config, group, tmp_path) -> None:
    await _filled(past, group)
    other = RunConfig.model_validate(config | {"name": "other", "bus": {"store_dir": str(past.run_dir / "bus/store")}})
    with pytest.raises(ReplayError, match="holds no experiences of run tests/other"):
        async with source_of(other, tmp_path / "scratch"):
            pass


async def test_a_bus_that_does_not_know_the_run_says_so(past, config, group, tmp_path) -> None:
    async with target_of(past) as bus:
        other = RunConfig.model_validate(config | {"name": "other", "bus": {"url": bus.url}})
        with pytest.raises(BusRefused, match=r"tests_other-\w+_experiences does not exist"):
            async with source_of(other, tmp_path / "scratch"):
                pass


async def test_a_store_has_one_server(past, tmp_path) -> None:
    first, second = LocalServer(tmp_path / "bus" / "store"), LocalServer(tmp_path / "bus" / "store")
    await first.start()
    with pytest.raises(BusRefused, match=rf"is served already, by process \d+ at {first.url}"):
        await second.start()
    with pytest.raises(BusRefused, match="is served already"):
        async with source_of(_with_store(past, tmp_path), tmp_path / "scratch"):
            pass
    await first.stop()
    await second.start()
    await second.stop()


def _with_store(config: RunConfig, tmp_path: Path) -> RunConfig:
    bus = config.bus.model_copy(update={"store_dir": str(tmp_path / "bus" / "store")})
    return config.model_copy(update={"bus": bus})


async def test_a_killed_process_leaves_no_lock_behind(tmp_path) -> None:
    program = (
        "import asyncio, json, sys\n"
        "from bus.server import LocalServer\n"
        "async def main():\n"
        "    server = LocalServer(sys.argv[1])\n"
        "    await server.start()\n"
        "    print(json.dumps(server.url), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "bus" / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        url = json.loads(await asyncio.to_thread(_json_line, process.stdout))
        process.kill()
    server = LocalServer(tmp_path / "bus" / "store")
    await server.start()
    assert server.url != url
    bus = await connect(server.url, "tests/any", name="test")
    await bus.close()
    await server.stop()


def _json_line(stream) -> bytes:
    """The first line that is not a log's."""
    return next(line for line in stream if line.startswith(b'"'))


def test_another_run_has_a_directory_and_a_store_of_its_own(past) -> None:
    config = past.model_copy(
        update={"checkpoint_job_dir": "/elsewhere", "bus": past.bus.model_copy(update={"port": 1})}
    )
    other = as_run(config, "other")
    assert other.run_name == "tests/other"
    assert other.run_dir == past.run_dir.parent / "other"
    assert other.bus.port is None
    assert as_run(config, "lab/other").run_name == "lab/other"
    assert as_run(config, "tests/past") is config


@pytest.mark.parametrize("name", ["", "a/b/c", "..", "x/..", "a\\b"])
def test_a_name_that_is_no_directory_is_refused(past, name: str) -> None:
    with pytest.raises(ReplayError, match="is no name of a run"):
        as_run(past, name)
