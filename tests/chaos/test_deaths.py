"""Whoever dies, the run goes on: every task is answered once, every experience is trained once."""

import asyncio
import os
import signal
from typing import Any

import pytest

from services.account.table import rows
from services.synchronizer.pace import floor_version
from services.synchronizer.plan import pace_of
from services.trainer.checkpoints import checkpoints

TASKS = 48
EXPERIENCES = 192


def _assert_whole(run: Any) -> None:
    summary = run.summary()
    assert summary["phase"] == "finished"
    assert summary["steps"] == 12
    assert summary["tasks"] == {"released": TASKS, "answered": TASKS, "quarantined": 0}
    experiences = summary["experiences"]
    assert (experiences["trained"], experiences["lost"], experiences["waiting"]) == (EXPERIENCES, 0, 0)
    ledger = checkpoints(run.config.run_dir)[-1].ledger()
    assert (ledger.step, ledger.ordinals.floor, ledger.ordinals.above) == (12, TASKS, set())
    assert ledger.counts.trained == EXPERIENCES


@pytest.mark.chaos
@pytest.mark.parametrize("service", ["explorer", "trainer", "synchronizer", "monitor", "evaluator"])
async def test_a_run_survives_kill_9_of_a_service(start, config, service) -> None:
    inputs = config["buffer"]["explorer_input"]
    inputs["eval_tasksets"] = [inputs["taskset"] | {"name": "sums_eval"}] if service == "evaluator" else []
    config["explorer"]["eval_interval"] = 4
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 3)
        os.kill(await run.pid_of(bus, service), signal.SIGKILL)
        assert await run.ends() == 0
    _assert_whole(run)
    if service == "evaluator":
        assert {found["version"] for found in run.summary()["evaluations"]} == {0, 4, 8, 12}


@pytest.mark.chaos
async def test_a_run_survives_kill_9_of_its_bus(start, config) -> None:
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 3)
        children = await asyncio.create_subprocess_exec(
            "pgrep", "-P", str(run.process.pid), "nats-server", stdout=asyncio.subprocess.PIPE
        )
        pid = int((await children.communicate())[0])
        os.kill(pid, signal.SIGKILL)
        assert await run.ends() == 0
    _assert_whole(run)


@pytest.mark.chaos
async def test_a_frozen_explorer_loses_its_tasks_to_another_and_duplicates_nothing(start, config) -> None:
    config["explorer"]["rollout_model"]["engine_num"] = 2
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        pid = await run.pid_of(bus, "explorer")
        os.kill(pid, signal.SIGSTOP)
        await run.until(bus, lambda found: found.step >= 7)
        os.kill(pid, signal.SIGCONT)
        assert await run.ends() == 0
    _assert_whole(run)


@pytest.mark.chaos
async def test_an_explorer_asked_to_leave_hands_its_tasks_back_at_once(start, config) -> None:
    config["explorer"] |= {"leave_timeout": 0.1}
    config["explorer"]["rollout_model"]["engine_num"] = 2
    config["synchronizer"]["task_lease"] = 600
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        os.kill(await run.pid_of(bus, "explorer"), signal.SIGTERM)
        assert await run.ends() == 0
    _assert_whole(run)
    assert "handed_back" in (run.config.run_dir / "log" / "explorer.log").read_text()


@pytest.mark.chaos
async def test_an_interrupted_run_goes_on_where_it_stopped(start, config) -> None:
    first = start(config)
    async with first.bus() as bus:
        await first.until(bus, lambda found: found.step >= 5)
    first.process.send_signal(signal.SIGINT)
    assert await first.ends() == 130
    stopped_at = checkpoints(first.config.run_dir)[-1].step
    assert stopped_at >= 5
    second = start(config)
    assert await second.ends() == 0
    _assert_whole(second)


@pytest.mark.chaos
async def test_a_finished_run_goes_on_when_more_steps_are_wanted(start, config) -> None:
    config["buffer"]["total_steps"] = 4
    assert await start(config).ends() == 0
    config["buffer"]["total_steps"] = 12
    longer = start(config)
    assert await longer.ends() == 0
    _assert_whole(longer)


@pytest.mark.chaos
async def test_every_token_is_as_fresh_as_the_pace_promises(start, config) -> None:
    config["explorer"]["rollout_model"]["engine_num"] = 2
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 11)
        found = [row async for row in rows(bus)]
        assert await run.ends() == 0
    pace = pace_of(run.config)
    assert found
    for row in found:
        assert min(row["token_versions"]) >= floor_version(row["batch"], pace)
