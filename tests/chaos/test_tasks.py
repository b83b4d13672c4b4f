"""Every released task ends: answered, or quarantined after so many real attempts. None is lost, none is done twice."""

import asyncio
import copy
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import nats
import pytest

from bus.server import LocalServer
from bus.subjects import Stream, stream_name, task_subject, token
from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.reports import Quarantined
from schemas.state import ReleaseProgress
from services.runtime.bus_access import join
from services.runtime.keys import EXCUSES, RELEASE, TRAIN

TASKS = 48
POISON = """\
import os
from services.rollout.rewards import register_reward
from services.rollout.workflows import ExactMatchWorkflow, register_workflow

@register_reward("faulty_reward")
def faulty(answer):
    if answer.row["prompt"] == "5+5=":
        raise ZeroDivisionError("the row has no truth")
    return {"accuracy": 0.0}

@register_workflow("deadly_workflow")
class Deadly(ExactMatchWorkflow):
    async def asked(self, task, policy):
        sampled = await super().asked(task, policy)
        if task.row["prompt"] == "5+5=":
            os._exit(9)
        return sampled
"""
"""What is wrong with the row "5+5=", which comes twice in 48 tasks: as the tasks 5 and 37."""


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _side(config: dict[str, Any], url: str, mode: str = "both") -> dict[str, Any]:
    side = copy.deepcopy(config) | {"mode": mode}
    side["bus"] = {**config["bus"], "url": url}
    return side


def _logs(run: Any) -> str:
    return "".join(file.read_text() for file in sorted((run.config.run_dir / "log").glob("*.log")))


def _assert_whole(run: Any, quarantined: int = 0) -> None:
    summary = run.summary()
    assert (summary["phase"], summary["steps"]) == ("finished", 12)
    assert summary["tasks"] == {"released": TASKS, "answered": TASKS - quarantined, "quarantined": quarantined}
    experiences = summary["experiences"]
    assert (experiences["trained"], experiences["lost"], experiences["waiting"]) == (4 * (TASKS - quarantined), 0, 0)


async def _messages(bus: Any, stream: Stream, kind: type) -> list[Any]:
    return [each.message async for each in bus.read(stream, follow=False) if isinstance(each.message, kind)]


async def _reissued(bus: Any) -> dict[int, int]:
    held = await bus.get(RELEASE)
    assert isinstance(held.message, ReleaseProgress)
    return {each.ordinal: each.times for each in held.message.reissued}


async def _occupy(run: Any, url: str, ids: list[tuple[str, str]]) -> None:
    """Garbage stands on these subjects under these ids before anybody else publishes there."""
    client = await nats.connect(url)
    for subject, message_id in ids:
        await client.jetstream().publish(subject, b"garbage", headers={"Nats-Msg-Id": message_id})
    await client.close()


@pytest.mark.chaos
async def test_garbage_under_the_ids_of_tasks_and_answers_loses_none(start, config, server, tmp_path) -> None:
    name = f"{config['project']}/{config['name']}"
    experiences = f"trinity.{token(name)}.experiences.garbage"
    side = _side(config, server.url)
    first = start(side, file="first.yaml")
    bus = await join(first.config, "test")
    await _occupy(
        first,
        server.url,
        [(experiences, f"{name}:answer:{ordinal}:0") for ordinal in (6, 47)]
        + [(task_subject(name, "sums"), f"{name}:task:{ordinal}:0") for ordinal in (9, 10, 46)],
    )
    assert await first.ends() == 0
    reissued = await _reissued(bus)
    await bus.close()
    assert reissued == dict.fromkeys((6, 9, 10, 46, 47), 1)
    _assert_whole(first)
    assert _logs(first).count("task_reissued") == 5


@pytest.mark.chaos
async def test_a_queue_purged_by_hand_costs_time_and_no_task(start, config, server) -> None:
    config["explorer"]["runner_per_model"] = 1
    run = start(_side(config, server.url))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 3 and found.streams["tasks"].messages > 1)
        client = await nats.connect(server.url)
        await client.jetstream().purge_stream(stream_name(bus.run, Stream.TASKS))
        await client.close()
        assert await run.ends() == 0
        assert await _reissued(bus)
    _assert_whole(run)


@pytest.mark.chaos
async def test_a_task_that_is_lost_every_time_is_quarantined_and_its_batch_goes_on(start, config, server) -> None:
    config["synchronizer"]["max_deliver"] = 2
    name = f"{config['project']}/{config['name']}"
    run = start(_side(config, server.url))
    bus = await join(run.config, "test")
    subject = f"trinity.{token(name)}.experiences.garbage"
    await _occupy(run, server.url, [(subject, f"{name}:answer:20:{retry}") for retry in range(4)])
    assert await run.ends() == 0
    (abandoned,) = await _messages(bus, Stream.EXPERIENCES, TaskAbandoned)
    (kept,) = [q for q in await _messages(bus, Stream.QUARANTINE, Quarantined) if q.stream == "tasks"]
    await bus.close()
    assert (abandoned.task.ordinal, abandoned.retry) == (20, 4)
    assert (kept.reason, kept.message_id) == ("its message or its answer was lost 3 times", f"{name}:task:20:2")
    _assert_whole(run, quarantined=1)


@pytest.mark.chaos
async def test_a_task_whose_reward_fails_is_quarantined_with_its_error(start, config, tmp_path, server) -> None:
    _poison(config, tmp_path, default_reward_fn_type="faulty_reward")
    config["explorer"]["max_retry_times"] = 0
    config["synchronizer"]["max_deliver"] = 2
    run = start(_side(config, server.url))
    assert await run.ends() == 0
    bus = await join(run.config, "test")
    quarantined = await _messages(bus, Stream.QUARANTINE, Quarantined)
    left = await bus.entries(EXCUSES)
    await bus.close()
    assert {each.attempts for each in quarantined} == {2}
    assert len(quarantined) == 2
    assert all("ZeroDivisionError: the row has no truth" in each.reason for each in quarantined)
    assert left == []
    _assert_whole(run, quarantined=2)


@pytest.mark.chaos
async def test_a_task_that_kills_its_explorer_is_quarantined_alone_and_the_run_ends_by_itself(
    start, config, tmp_path, server
) -> None:
    _poison(config, tmp_path, default_workflow_type="deadly_workflow")
    config["synchronizer"] |= {"task_lease": 1, "max_deliver": 3}
    run = start(_side(config, server.url))
    assert await run.ends(240) == 0
    bus = await join(run.config, "test")
    quarantined = await _messages(bus, Stream.QUARANTINE, Quarantined)
    abandoned = await _messages(bus, Stream.EXPERIENCES, TaskAbandoned)
    await bus.close()
    assert {each.task.ordinal for each in abandoned} == {5, 37}
    assert [each.attempts for each in abandoned] == [3, 3]
    assert all("no explorer has answered it in 3 deliveries" in each.reason for each in quarantined)
    _assert_whole(run, quarantined=2)


def _poison(config: dict[str, Any], root: Path, **taskset: str) -> None:
    (root / "plugins").mkdir()
    (root / "plugins" / "poison.py").write_text(POISON)
    config["plugin_dirs"] = [str(root / "plugins")]
    config["buffer"]["explorer_input"]["taskset"] |= taskset


@pytest.mark.chaos
async def test_a_task_that_was_handed_back_keeps_all_its_attempts(start, config) -> None:
    config["explorer"] |= {"leave_timeout": 0.1}
    _two_slow_explorers(config)
    config["synchronizer"] |= {"task_lease": 600, "max_deliver": 1}
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: _in_hand(found, "explorer") > 0)
        os.kill(await run.pid_of(bus, "explorer"), signal.SIGTERM)
        assert await run.ends() == 0
    _assert_whole(run)
    (handed_back,) = re.findall(r"handed_back=(\d+)", _logs(run))
    assert int(handed_back) > 0


def _two_slow_explorers(config: dict[str, Any]) -> None:
    """A task takes 1.2 s: whoever has just begun one still has it when something happens to him."""
    config["explorer"]["rollout_model"] |= {"engine_num": 2, "extra_engine_args": {"delay_s_per_token": 0.2}}
    config["explorer"]["runner_per_model"] = 3


def _in_hand(found: Any, name: str) -> int:
    return sum(member.tasks_in_hand for member in found.members if member.member == name)


@pytest.mark.chaos
async def test_tasks_of_a_killed_explorer_are_answered_by_another_within_their_lease(start, config) -> None:
    _two_slow_explorers(config)
    config["synchronizer"]["task_lease"] = 2
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: _in_hand(found, "explorer") > 0)
        pid = await run.pid_of(bus, "explorer")
        os.kill(pid, signal.SIGKILL)
        killed_at = time.time()
        while not (again := [g for g in await _messages(bus, Stream.EXPERIENCES, GroupSampled) if g.attempt > 1]):
            assert time.time() < killed_at + 30
            await asyncio.sleep(0.1)
        assert await run.ends() == 0
    waited_s = min(group.started_at for group in again) - killed_at
    assert waited_s < 4.0, waited_s
    _assert_whole(run)


@pytest.mark.chaos
async def test_a_frozen_leader_finds_itself_superseded_and_releases_nothing_more(start, config, server) -> None:
    config["buffer"]["total_steps"] = 20
    run = start(_side(config, server.url))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        leader = await run.pid_of(bus, "synchronizer")
        standby = start(_side(config, server.url, "explore"), "synchronizer", file="standby.yaml")
        os.kill(leader, signal.SIGSTOP)
        before = await bus.lease_holder("synchronizer")
        await run.until(bus, lambda found: found.release.term > before.term and found.step >= 8)
        os.kill(leader, signal.SIGCONT)
        assert await run.ends() == 0
        assert await standby.ends() == 0
        groups = await _messages(bus, Stream.EXPERIENCES, GroupSampled)
    log = (run.config.run_dir / "log" / "synchronizer.log").read_text()
    assert "Superseded: the lease of this synchronizer, of term 1, is over; " in log
    assert re.search(r"leads with term 2\. Nothing more is released here", log)
    assert sorted(group.task.ordinal for group in groups) == list(range(80))
    summary = run.summary()
    assert summary["tasks"] == {"released": 80, "answered": 80, "quarantined": 0}
    experiences = summary["experiences"]
    assert (experiences["trained"], experiences["duplicates"], experiences["lost"]) == (320, 0, 0)


@pytest.mark.chaos
async def test_a_trainer_frozen_for_longer_than_a_heartbeat_lasts_goes_on(start, config) -> None:
    run = start(config)
    async with run.bus() as bus:
        found = await run.until(bus, lambda found: found.step >= 3)
        pid = await run.pid_of(bus, "trainer")
        os.kill(pid, signal.SIGSTOP)
        await run.until(bus, lambda found: all(member.service != "trainer" for member in found.members))
        await asyncio.sleep(2)
        os.kill(pid, signal.SIGCONT)
        assert await run.ends() == 0
        held = await bus.get(TRAIN) if bus.is_connected else None
    assert held is None or held.message.weights.incarnation == found.train.weights.incarnation
    _assert_whole(run)
    assert run.summary()["experiences"]["duplicates"] == 0


@pytest.mark.chaos
async def test_late_answers_that_the_broker_stores_are_duplicates_to_the_ledger(start, config) -> None:
    """An explorer is frozen until others have answered its tasks and the broker has forgotten their ids."""
    config["bus"]["dedupe_window"] = 1
    _two_slow_explorers(config)
    config["synchronizer"]["task_lease"] = 1
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: _in_hand(found, "explorer") > 0)
        pid = await run.pid_of(bus, "explorer")
        os.kill(pid, signal.SIGSTOP)
        await run.until(bus, lambda found: found.step >= 4)  # seconds after the frozen tasks were answered
        os.kill(pid, signal.SIGCONT)
        assert await run.ends() == 0
    _assert_whole(run)
    experiences = run.summary()["experiences"]
    assert experiences["duplicates"] > 0
    assert experiences["published"] == 4 * TASKS + experiences["duplicates"]


@pytest.mark.chaos
async def test_an_explorer_serves_the_tasksets_that_it_names_and_waits_for_unknown_ones(
    start, config, server, tmp_path
) -> None:
    both = copy.deepcopy(config["buffer"]["explorer_input"].pop("taskset"))
    config["buffer"]["explorer_input"]["tasksets"] = [both, both | {"name": "others"}]
    choosy = _side(config, server.url, "explore")
    choosy["explorer"] |= {"name": "choosy", "tasksets": ["others", "no_such"]}
    run = start(_side(config, server.url))
    async with run.bus() as bus:
        explorer = start(choosy, "explorer", file="choosy.yaml")
        assert await run.ends() == 0
        assert await explorer.ends() == 0
        groups = await _messages(bus, Stream.EXPERIENCES, GroupSampled)
    served = {group.task.taskset for group in groups if group.explorer.startswith("explorer-")}
    assert served <= {"others"}
    assert {group.task.taskset for group in groups} == {"sums", "others"}
    assert "waiting_for_taskset" in explorer.output
    assert "no_such" in explorer.output
    _assert_whole(run)
