"""The commit point: a trainer that dies in a checkpoint, is superseded, or stalls, costs nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bus.subjects import Stream
from services.runtime.bus_access import join_for_reading
from services.trainer.checkpoints import checkpoints

TASKS, EXPERIENCES = 48, 192


def _assert_whole(run: Any) -> None:
    summary = run.summary()
    assert summary["steps"] == 12
    assert (summary["tasks"]["answered"], summary["experiences"]["lost"]) == (TASKS, 0)
    ledger = checkpoints(run.config.run_dir)[-1].ledger()
    assert (ledger.step, ledger.ordinals.floor, ledger.ordinals.above) == (12, TASKS, set())
    assert ledger.counts.trained == EXPERIENCES


async def _appears(directory: Path, pattern: str) -> Path:
    deadline = time.monotonic() + 60
    while not (found := list(directory.glob(pattern))):
        assert time.monotonic() < deadline, f"no {pattern} in {directory}"
        await asyncio.sleep(0.002)
    return found[0]


def _trinity(config_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "services.cli", *command, "--config", str(config_path)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.chaos
async def test_a_trainer_killed_in_a_checkpoint_goes_on_from_the_one_before(start, config, tmp_path) -> None:
    config["trainer"]["trainer_config"] = {"seconds_per_checkpoint": 0.3}
    run = start(config)
    run_dir = run.config.run_dir
    async with run.bus() as bus:
        await _appears(run_dir, "global_step_4")
        left = await _appears(run_dir, ".global_step_8.*.writing")
        os.kill(await run.pid_of(bus, "trainer"), signal.SIGKILL)
        assert left.is_dir()
        assert await run.ends() == 0
    _assert_whole(run)
    assert not left.exists()
    assert [found.step for found in checkpoints(run_dir)] == [4, 8, 12]
    assert checkpoints(run_dir)[-1].ledger().lineage[-1].step == 4
    assert [found.has_weights for found in checkpoints(run_dir)] == [False, False, True]

    listed = _trinity(tmp_path / "run.yaml", "checkpoints", "list")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("yes") == 3
    assert listed.stdout.count("actor, huggingface") == 1
    assert _trinity(tmp_path / "run.yaml", "checkpoints", "verify").returncode == 0
    next((run_dir / "global_step_8" / "actor").iterdir()).write_text("{}")
    damaged = _trinity(tmp_path / "run.yaml", "checkpoints", "verify")
    assert damaged.returncode == 1
    assert "global_step_8: actor/fake_state.json has 2 bytes" in damaged.stdout
    pruned = _trinity(tmp_path / "run.yaml", "checkpoints", "prune")
    assert "in force: global_step_12" in pruned.stdout
    assert [found.step for found in checkpoints(run_dir)] == [12]


@pytest.mark.chaos
async def test_a_second_trainer_supersedes_the_first_which_says_so_and_stays_away(start, config) -> None:
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.1
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        first = await run.pid_of(bus, "trainer")
        os.kill(first, signal.SIGSTOP)
        second = start(config, "trainer", file="second.yaml")
        await run.until(bus, lambda found: found.newest is not None and found.newest.weights.incarnation == 2)
        os.kill(first, signal.SIGCONT)
        assert await run.ends() == 0
        assert await second.ends() == 0
    kept, server = await join_for_reading(run.config, "test")
    announced = [found.message.weights.incarnation async for found in kept.read(Stream.WEIGHTS, follow=False)]
    await kept.close()
    await server.stop()
    assert announced == sorted(announced)
    _assert_whole(run)
    said = (run.config.run_dir / "log" / "trainer.log").read_text()
    assert "trainer incarnation 2" in said
    assert "this one is 1, so it announces and commits nothing more and ends" in said
    assert "service_restarting" not in run.output


@pytest.mark.chaos
async def test_explorers_wait_for_a_stalled_trainer_and_go_on_when_it_is_back(start, config) -> None:
    config["synchronizer"] |= {"sync_style": "fully_async"}
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.0
    config["buffer"]["total_steps"] = 30
    config["bus"]["max_experience_bytes"] = 40_000
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        trainer = await run.pid_of(bus, "trainer")
        os.kill(trainer, signal.SIGSTOP)
        full = await run.until(bus, lambda found: found.streams["experiences"].size_bytes > 36_000)
        explorer = run.config.run_dir / "log" / "explorer.log"
        deadline = time.monotonic() + 30
        while "publish_waiting" not in explorer.read_text():
            assert time.monotonic() < deadline, full
            await asyncio.sleep(0.1)
        os.kill(trainer, signal.SIGCONT)
        assert await run.ends() == 0
    assert "bus.max_experience_bytes" in explorer.read_text()
    summary = run.summary()
    assert (summary["steps"], summary["experiences"]["trained"], summary["experiences"]["lost"]) == (30, 480, 0)


@pytest.mark.chaos
async def test_a_stream_that_nobody_may_free_says_which_setting_decides(start, config, tmp_path) -> None:
    config["buffer"] |= {"retain": "all", "total_steps": 100}
    config["bus"]["max_experience_bytes"] = 30_000
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.0
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: "buffer.retain=all" in (found.train.waiting_for if found.train else ""))
        shown = _trinity(tmp_path / "run.yaml", "status")
        assert "buffer.retain" in shown.stdout
        assert "experience_stream_full" in (run.config.run_dir / "log" / "trainer.log").read_text()
        run.process.send_signal(signal.SIGINT)
        assert await run.ends() == 130
    config["buffer"] |= {"retain": "50%", "total_steps": 12}
    longer = start(config)
    assert await longer.ends() == 0
    assert longer.summary()["experiences"]["lost"] == 0
