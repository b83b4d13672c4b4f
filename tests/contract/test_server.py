"""The local server: ours and no other, ended with its parent, with its own words when it fails."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bus.errors import BusRefused
from bus.server import LocalServer, server_binary

PARENT = textwrap.dedent(
    """
    import asyncio, sys, structlog
    from bus.server import LocalServer

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    async def main() -> None:
        server = LocalServer(sys.argv[1])
        await server.start()
        print(server.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def test_a_taken_port_is_a_clear_refusal(server, tmp_path):
    other = LocalServer(tmp_path / "other" / "store", port=server.port)
    with pytest.raises(BusRefused, match=f"port {server.port}"):
        await other.start()


async def test_a_server_that_crashes_at_once_tells_the_last_lines_of_its_log(tmp_path):
    server = LocalServer(tmp_path / "store", sync_interval="nonsense")
    with pytest.raises(BusRefused, match="nats-server ended at once"):
        await server.start()
    assert not server.is_running


async def test_a_stopped_server_may_be_started_again_with_its_messages(server, bus, said):
    await bus.publish(said.group(0))
    url = server.url
    await server.stop()
    assert not server.is_running
    await server.start()
    assert server.url == url
    assert (await bus.publish(said.group(0))).is_duplicate


async def test_the_server_does_not_outlive_a_killed_parent(tmp_path, eventually):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "store")], stdout=subprocess.PIPE)
    pid = int(await asyncio.wait_for(asyncio.to_thread(parent.stdout.readline), 20.0))
    assert lives(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await eventually(lambda: not lives(pid), 5.0)


async def test_an_interrupt_at_the_terminal_does_not_reach_the_server(server):
    assert os.getpgid(server.pid) != os.getpgid(os.getpid())


async def test_the_server_syncs_always_and_keeps_room_on_the_disk(server):
    config = server.config_path.read_text()
    assert 'sync_interval: "always"' in config
    assert "max_file: " in config
    assert server.log_path.exists()


async def test_stopping_twice_is_harmless(tmp_path):
    server = LocalServer(tmp_path / "store")
    await server.start()
    await server.stop()
    await server.stop()


async def test_a_frozen_server_is_stopped_by_force(tmp_path, monkeypatch):
    monkeypatch.setattr("bus.server._STOP_TIMEOUT_S", 0.3)
    server = LocalServer(tmp_path / "store")
    await server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    await server.stop()
    assert not lives(pid)


def test_the_binary_of_the_wheel_is_found_first():
    assert Path(server_binary()).parent == Path(sys.executable).parent
