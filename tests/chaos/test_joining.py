"""Sides that are started apart, join late, lose their bus, or hear garbage."""

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from bus.server import LocalServer
from bus.subjects import Stream, stream_subjects
from services.account.table import rows

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
