"""Sides that are started apart, join late, lose their bus, or hear garbage."""

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from bus.server import LocalServer
from bus.subjects import Stream, stream_subjects
from schemas.state import LeaseHeld, TasksetOffered
from services.account.snapshot import Snapshot
from services.account.table import rows
from services.runtime.keys import OFFERS, offer_key

TASKS = 48


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _side(config: dict[str, Any], url: str, mode: str, **explorer: Any) -> dict[str, Any]:
    side = copy.deepcopy(config) | {"mode": mode}
    side["bus"] = {**config["bus"], "url": url}
    side["explorer"] |= explorer
    return side


@pytest.mark.chaos
async def test_an_explorer_that_joins_late_is_trained_on_without_a_restart(start, config, server) -> None:
    config["buffer"]["total_steps"] = 30
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.15  # time to join
    trainer = start(_side(config, server.url, "train"), file="trainer.yaml")
    explorer = start(_side(config, server.url, "explore"), file="explorer.yaml")
    async with trainer.bus() as bus:
        await trainer.until(bus, lambda found: found.step >= 3)
        newcomer = start(_side(config, server.url, "explore", name="explorer_new"), file="explorer_new.yaml")
        assert await trainer.ends() == 0
        assert await explorer.ends() == 0
        assert await newcomer.ends() == 0
        answered = {row["explorer"] async for row in rows(bus)}
    assert answered == {"explorer", "explorer_new"}
    summary = trainer.summary()
    assert summary["steps"] == 30
    assert summary["experiences"]["lost"] == 0
    assert summary["experiences"]["trained"] == 30 * 16
    assert "service_restarting" not in trainer.output + explorer.output + newcomer.output


def _slow(config: dict[str, Any]) -> None:
    """Two epochs in about half a minute, so that whoever is started while it runs has time to join."""
    config["buffer"] |= {"total_steps": None, "total_epochs": 2}
    config["explorer"]["runner_per_model"] = 4
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.25


def _with_taskset(side: dict[str, Any], root: Path, name: str, rows: int) -> dict[str, Any]:
    """The same side with a taskset of its own: `row` is what tells its rows from the others'."""
    path = root / f"{name}_brought.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{name} {n}", "answer": str(n)}) + "\n" for n in range(rows)))
    taskset = side["buffer"]["explorer_input"]["taskset"] | {"name": name, "path": str(path)}
    side["buffer"]["explorer_input"] = {"taskset": taskset}
    return side


async def _rows_trained(bus: Any) -> Counter[str]:
    """How often each row of each taskset was answered."""
    return Counter([f"{row['taskset']}/{row['index']}" async for row in rows(bus) if row["position"] == 0])


@pytest.mark.chaos
@pytest.mark.parametrize("command", ["run", "explorer"])
async def test_an_explorer_brings_its_own_taskset_and_no_row_is_skipped_or_repeated(
    start, config, server, tmp_path, command
) -> None:
    _slow(config)
    trainer = start(_side(config, server.url, "train"), file="trainer.yaml")
    explorer = start(_side(config, server.url, "explore"), file="explorer.yaml")
    async with trainer.bus() as bus:
        await trainer.until(bus, lambda found: found.step >= 2)
        side = _with_taskset(_side(config, server.url, "explore", name="explorer_new"), tmp_path, "news", rows=6)
        newcomer = start(side, command, file="explorer_new.yaml")
        assert await trainer.ends() == 0
        assert await explorer.ends() == 0
        assert await newcomer.ends() == 0
        found = await _rows_trained(bus)
    assert found == {f"sums/{n}": 2 for n in range(32)} | {f"news/{n}": 2 for n in range(6)}
    summary = trainer.summary()
    assert summary["tasks"] == {"released": 76, "answered": 76, "quarantined": 0}
    assert (summary["experiences"]["trained"], summary["experiences"]["lost"]) == (76 * 4, 0)
    assert "service_restarting" not in trainer.output + explorer.output + newcomer.output


@pytest.mark.chaos
async def test_a_taskset_that_was_brought_stays_when_another_synchronizer_takes_over(
    start, config, server, tmp_path
) -> None:
    """The synchronizer that takes over is the newcomer's, whose configuration does not have the old taskset."""
    _slow(config)
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        side = _with_taskset(_side(config, server.url, "explore", name="explorer_new"), tmp_path, "news", rows=6)
        newcomer = start(side, file="explorer_new.yaml")
        await run.until(bus, lambda found: len(found.release.segments) == 2)
        found, successor = await _killed_until(run, bus, "synchronizer-explorer_new")
        assert await run.ends() == 0
        assert await newcomer.ends() == 0
        trained = await _rows_trained(bus)
    assert successor.holder == "synchronizer-explorer_new"
    assert found.release.total_tasks == 76
    assert trained == {f"sums/{n}": 2 for n in range(32)} | {f"news/{n}": 2 for n in range(6)}
    assert run.summary()["experiences"]["lost"] == 0


@pytest.mark.chaos
async def test_tasksets_that_cannot_be_added_are_refused_with_the_reason_and_stop_nobody(
    start, config, server, tmp_path
) -> None:
    _slow(config)
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 1)
        absent = {"name": "absent", "path": str(tmp_path / "absent.jsonl"), "default_workflow_type": "math_workflow"}
        for name, plain in (("absent", absent), ("hostile", {"name": "hostile", "path": 7, "no_such_key": []})):
            offer = TasksetOffered(run=bus.run, name=name, config=plain, offered_by="somebody", offered_at=0.0)
            await bus.put(offer_key(name), offer)
        other = _with_taskset(_side(config, server.url, "explore", name="explorer_new"), tmp_path, "sums", rows=6)
        newcomer = start(other, "explorer", file="explorer_new.yaml")
        assert await run.ends() == 0
        assert await newcomer.ends() == 0
        left = {entry.message.name for entry in await bus.entries(OFFERS)}
        answered = {row["explorer"] async for row in rows(bus)}
    assert left == {"sums"}
    log = (run.config.run_dir / "log" / "synchronizer.log").read_text()
    assert log.count("taskset_refused") == 2
    assert "absent.jsonl" in log
    assert "no_such_key" in log
    assert "taskset_refused" in newcomer.output
    assert "path: " in newcomer.output
    assert len(answered) == 2
    assert run.summary()["tasks"] == {"released": 64, "answered": 64, "quarantined": 0}


@pytest.mark.chaos
async def test_a_bus_that_goes_away_and_comes_back_costs_nothing(start, config, server) -> None:
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 3)
        await server.stop()
        await asyncio.sleep(8)  # longer than every lease and heartbeat of the run
        await server.start()
        assert await run.ends() == 0
    summary = run.summary()
    assert summary["tasks"] == {"released": TASKS, "answered": TASKS, "quarantined": 0}
    assert summary["experiences"]["lost"] == 0
    assert summary["experiences"]["trained"] == TASKS * 4


@pytest.mark.chaos
async def test_garbage_on_every_subject_is_quarantined_and_stops_nobody(start, config, server) -> None:
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        client = await nats.connect(server.url)
        for stream in (Stream.TASKS, Stream.EXPERIENCES, Stream.WEIGHTS, Stream.METRICS):
            for subject in stream_subjects(bus.run, stream):
                for payload in (b"", b"\xff\x00garbage", b"\x81\xa1s\xa1x"):
                    await client.jetstream().publish(subject.replace(">", "garbage"), payload)
        await client.close()
        assert await run.ends() == 0
        assert (await bus.state(Stream.QUARANTINE)).messages >= 12
    summary = run.summary()
    assert summary["tasks"]["answered"] == TASKS
    assert summary["experiences"]["lost"] == 0
    assert summary["experiences"]["quarantined"] == 3


@pytest.mark.chaos
async def test_a_second_synchronizer_takes_over_from_a_dead_one(start, config, server) -> None:
    config["trainer"]["trainer_config"] = {"seconds_per_step": 2.0}  # time to join
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 1)
        standby = start(_side(config, server.url, "explore"), "synchronizer", file="standby.yaml")
        await run.until(bus, lambda found: len(found.members) == 5)
        holder = await bus.lease_holder("synchronizer")
        assert holder is not None
        os.kill(await _synchronizer(bus, holder.holder), signal.SIGKILL)
        assert await run.ends() == 0
        assert await standby.ends() == 0
    assert run.summary()["tasks"] == {"released": TASKS, "answered": TASKS, "quarantined": 0}
    assert "leading" in standby.output + (run.config.run_dir / "log" / "synchronizer.log").read_text()


async def _killed_until(run: Any, bus: Any, name: str) -> tuple[Snapshot, LeaseHeld]:
    """End the leader until `name` leads: one that is started again may be as quick as one that waits."""
    for _ in range(4):
        holder = await bus.lease_holder("synchronizer")
        os.kill(await _synchronizer(bus, holder.holder), signal.SIGKILL)
        found = await run.until(bus, lambda found, term=holder.term: found.release.term > term)
        successor = await bus.lease_holder("synchronizer")
        if successor.holder == name:
            break
    return found, successor


async def _synchronizer(bus: Any, name: str) -> int:
    found = await bus.get(f"member.synchronizer.{name}")
    assert found is not None
    return int(found.message.pid)


def test_a_bus_that_is_not_there_is_one_readable_error(config, tmp_path: Path) -> None:
    config["bus"] |= {"url": "nats://127.0.0.1:9", "connect_timeout": 1}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "services.cli", "run", "--config", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "no bus at nats://127.0.0.1:9" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.chaos
async def test_bench_judges_every_version_that_a_run_has_left(start, config) -> None:
    taskset = config["buffer"]["explorer_input"]["taskset"]
    config["buffer"] |= {"total_steps": 2}
    assert await start(config).ends() == 0
    config["mode"] = "bench"
    config["buffer"]["explorer_input"]["eval_tasksets"] = [taskset | {"name": "sums_eval"}]
    bench = start(config, file="bench.yaml")
    assert await bench.ends() == 0
    found = json.loads((bench.config.run_dir / "bench.json").read_text())
    assert [judged["version"] for judged in found["evaluations"]] == [0, 1, 2]
    assert "version 2 on sums_eval: accuracy/mean@1" in bench.output
