"""A whole run on a bus that lets in nobody without credentials, each service with those of its role."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bus.permissions import Role
from schemas.state import LeaseHeld
from services.config.load import load
from services.runtime.bus_access import join

pytestmark = pytest.mark.e2e


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "services.cli", *words], capture_output=True, text=True, timeout=60)


@pytest.fixture
def serve(config: dict[str, Any], start: Any, tmp_path: Path) -> Any:
    """Starts `trinity bus --auth` for the run, always on the same port and store."""
    port, store = unused_port(), tmp_path / "bus" / "store"
    config["bus"] |= {"url": f"nats://127.0.0.1:{port}", "credentials": str(tmp_path / "bus" / "credentials")}

    async def served() -> Any:
        bus = start(config, "bus", "--auth", "--port", str(port), "--store-dir", str(store), file="bus.yaml")
        async with asyncio.timeout(30.0):
            while "Ctrl-C stops it" not in bus.output:
                assert bus.process.poll() is None, bus.output
                await asyncio.sleep(0.05)
        return bus

    return served


@pytest.fixture
async def guarded(config: dict[str, Any], serve: Any) -> dict[str, Any]:
    """The configuration of a run whose bus is served."""
    await serve()
    return config


async def test_a_run_with_credentials_finishes_and_loses_nothing(guarded, start, tmp_path):
    run = start(guarded)
    assert await run.ends() == 0, run.output[-3000:]
    summary = run.summary()
    assert (summary["phase"], summary["steps"]) == ("finished", 12)
    assert (summary["experiences"]["lost"], summary["experiences"]["duplicates"]) == (0, 0)
    assert summary["experiences"]["trained"] == 12 * 4 * 4
    logs = "".join(path.read_text(encoding="utf-8") for path in run.config.run_dir.rglob("*.log"))
    assert "bus_denied" not in logs + run.output
    looked = command("status", "--json", "--config", str(tmp_path / "run.yaml"))
    assert looked.returncode == 0, looked.stderr
    assert json.loads(looked.stdout)["run"] == "tests/fake"
    out = tmp_path / "run.parquet"
    exported = command("export", "--config", str(tmp_path / "run.yaml"), "--out", str(out))
    assert (exported.returncode, out.exists()) == (0, True), exported.stderr


async def test_a_service_with_the_credentials_of_another_says_so_and_ends(guarded, start):
    (explorers,) = Path(guarded["bus"]["credentials"]).glob("tests_fake*/explorer.nk")
    guarded["bus"]["credentials"] = str(explorers)
    trainer = start(guarded, "trainer", file="trainer.yaml")
    assert await trainer.ends(30.0) == 2
    assert "are those of the explorer, and this is the trainer" in trainer.output


async def test_a_run_that_the_bus_does_not_serve_is_refused(guarded, start):
    stranger = start({**guarded, "name": "stranger"}, "explorer", file="stranger.yaml")
    assert await stranger.ends(30.0) == 2
    assert "`trinity bus --auth --run tests/stranger` writes it" in stranger.output


async def test_a_bus_started_again_keeps_credentials_and_messages(serve, tmp_path):
    first = await serve()
    kept = {path: path.read_text() for path in (tmp_path / "bus" / "credentials").rglob("*.nk")}
    config = load(tmp_path / "bus.yaml").config
    bus = await join(config, "operator", Role.OPERATOR)
    await bus.put("declared", LeaseHeld(holder="before", term=1, renewed_at=0.0))
    first.stop()
    await serve()
    assert {path: path.read_text() for path in (tmp_path / "bus" / "credentials").rglob("*.nk")} == kept
    assert (await bus.get("declared")).message.holder == "before"
    await bus.close()


async def test_only_the_admin_declares(guarded, tmp_path):
    declared = command("bus", "declare", "--config", str(tmp_path / "bus.yaml"))
    assert declared.returncode == 0, declared.stderr
    assert "run tests/fake is declared at" in declared.stdout
    credentials = next((tmp_path / "bus" / "credentials").glob("tests_fake*"))
    (credentials / "admin.nk").unlink()
    declared = command("bus", "declare", "--config", str(tmp_path / "bus.yaml"))
    assert declared.returncode == 2
    assert "no admin.nk for run tests/fake" in declared.stderr
