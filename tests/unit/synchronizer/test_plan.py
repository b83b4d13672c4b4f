"""What a run releases: batches that meet, and totals that grow with the tasksets that join."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.config.tree import RunConfig
from services.rollout.config import TasksetConfig
from services.rollout.tasksets import Taskset, open_taskset
from services.synchronizer.plan import Plan, plan_of, planned


def taskset(root: Path, name: str, rows: int) -> dict[str, Any]:
    path = root / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{name} {n}", "answer": "1"}) + "\n" for n in range(rows)))
    return {"name": name, "path": str(path), "format": {"prompt_type": "plaintext", "prompt_key": "prompt"}}


def opened(root: Path, name: str, rows: int) -> Taskset:
    return open_taskset(TasksetConfig.model_validate(taskset(root, name, rows)))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    buffer = {"batch_size": 4, "total_epochs": 2, "explorer_input": {"taskset": taskset(tmp_path, "old", 5)}}
    return plan_of(RunConfig.model_validate({"buffer": buffer, "algorithm": {"repeat_times": 2}}))


def test_batches_cover_every_task_once_and_the_last_is_smaller(plan: Plan) -> None:
    assert (plan.tasks, plan.batches) == (10, 3)
    batches = [plan.next_batch(first) for first in (0, 4, 8)]
    assert [ordinal for batch in batches for ordinal in batch] == list(range(10))


def test_a_run_that_ended_within_a_batch_goes_on_with_the_rest_of_it(plan: Plan) -> None:
    assert list(plan.next_batch(6)) == [6, 7]


def test_a_task_names_its_leader_and_its_retry(plan: Plan) -> None:
    (task,) = plan.released_tasks([9], incarnation=3, term=7, retry=2)
    assert (task.term, task.retry, task.floor.incarnation, task.batch_tasks) == (7, 2, 3, 2)
    assert (task.task.ordinal, task.task.batch, task.task.epoch, task.task.index) == (9, 2, 1, 4)


def test_a_taskset_that_joins_adds_its_rows_in_every_epoch_and_repeats_or_skips_no_other(
    plan: Plan, tmp_path: Path
) -> None:
    joined = plan.with_taskset(opened(tmp_path, "new", 3), ordinal=4)
    assert (joined.tasks, joined.batches) == (16, 4)
    tasks = joined.released_tasks(range(16), incarnation=1, term=1)
    assert [task.task.task_id for task in tasks[:4]] == [f"old/0/{row}" for row in range(4)]
    expected = {
        f"{name}/{epoch}/{row}" for name, rows in (("old", 5), ("new", 3)) for epoch in (0, 1) for row in range(rows)
    }
    assert {task.task.task_id for task in tasks} == expected
    assert tasks[5].row["prompt"].startswith(tasks[5].task.taskset)


def test_with_total_steps_a_taskset_that_joins_adds_no_task(plan: Plan, tmp_path: Path) -> None:
    config = plan.config.model_copy(update={"buffer": plan.config.buffer.model_copy(update={"total_steps": 2})})
    steps = planned(config, plan.mixture.tasksets)
    joined = steps.with_taskset(opened(tmp_path, "new", 3), ordinal=4)
    assert joined.tasks == steps.tasks == 8
    assert {task.task.taskset for task in joined.released_tasks(range(4, 8), 1, 1)} == {"old", "new"}


def test_a_successor_makes_the_same_plan_from_the_segments(plan: Plan, tmp_path: Path) -> None:
    joined = plan.with_taskset(opened(tmp_path, "new", 3), ordinal=4)
    successor = planned(plan.config, joined.mixture.tasksets, joined.mixture.segments)
    identities = [task.task for task in joined.released_tasks(range(16), 1, 1)]
    assert [task.task for task in successor.released_tasks(range(16), 1, 1)] == identities
