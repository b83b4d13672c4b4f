"""What the user of a whole run sees of its less common parts: plug-ins that fail, slow tasks, row pipelines, epochs of
a store, and a monitor that comes when all is over."""

import copy
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus.server import LocalServer
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.account.table import row
from services.runtime.bus_access import join
from services.store.build import store_at
from services.store.place import place_of
from services.trainer.checkpoints import checkpoints

STEPS = 3
TOUCHY = """\
from services.trainer.pipeline.outcome import Outcome
from services.trainer.pipeline.registry import register_operator

@register_operator("touchy")
def touchy(experiences):
    if WRONG and experiences[0].prompt_text == "5+5=":
        raise ZeroDivisionError("no answer is right")
    return Outcome(experiences)
"""
SLOW = """\
import asyncio
from services.rollout.workflows import ExactMatchWorkflow, register_workflow

started = set()

@register_workflow("slow_at_first_workflow")
class SlowAtFirst(ExactMatchWorkflow):
    async def asked(self, task, policy):
        if task.task.ordinal == 10 and task.task.ordinal not in started:
            started.add(task.task.ordinal)
            await asyncio.sleep(600)
        return await super().asked(task, policy)
"""
"""The first episode of task 10 would take ten minutes, and any after it is quick."""


@pytest.fixture
def config(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "plugins").mkdir()
    config["plugin_dirs"] = [str(tmp_path / "plugins")]
    config["buffer"]["total_steps"] = STEPS
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.01}
    return config


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _experiences(run: Any) -> dict[str, Any]:
    summary = run.summary()
    assert (summary["phase"], summary["disagreements"]) == ("finished", [])
    return {name: summary["experiences"][name] for name in ("trained", "lost")}


@pytest.mark.chaos
async def test_an_operator_that_raises_ends_the_run_with_its_words_and_once_corrected_loses_nothing(
    start, config, tmp_path
) -> None:
    """The prompts of the last two of twelve tasks are longer than they may be, which is told as well."""
    config["model"]["max_prompt_tokens"] = 4
    plugin = tmp_path / "plugins" / "touchy.py"
    plugin.write_text(f"WRONG = True\n{TOUCHY}", encoding="utf-8")
    config["data_processor"] = {"experience_pipeline": {"operators": [{"name": "touchy"}]}}
    failed = start(config)
    assert await failed.ends() == 1
    assert "service_restarting" not in failed.output
    error = failed.output[failed.output.index("error: trainer cannot go on before this is corrected") :]
    raised = r"operator 'touchy' raises ZeroDivisionError: no answer is right \(task sums/0/5, sequence \d+ "
    assert re.search(raised, error), error
    plugin.write_text(f"WRONG = False\n{TOUCHY}", encoding="utf-8")
    corrected = start(config, file="again.yaml")
    assert await corrected.ends() == 0, corrected.output
    counts = _experiences(corrected)
    assert (counts["trained"], counts["lost"]) == (STEPS * 16, 0)
    assert corrected.summary()["tasks"] == {"released": 4 * STEPS, "answered": 4 * STEPS, "quarantined": 0}
    assert "answers were to prompts longer than model.max_prompt_tokens" in corrected.output


@pytest.mark.chaos
async def test_a_run_takes_the_rows_that_its_task_pipeline_leaves_and_a_slow_task_is_tried_again_with_more_time(
    start, config, tmp_path, server
) -> None:
    """The limit that an explorer has learned from its tasks ends the first try of a task, and no other."""
    (tmp_path / "plugins" / "slow.py").write_text(SLOW, encoding="utf-8")
    config["bus"]["url"] = server.url
    config["monitor"] = {"monitor_type": "wandb", "monitor_args": {"mode": "offline"}}
    config["buffer"]["explorer_input"]["taskset"]["default_workflow_type"] = "slow_at_first_workflow"
    config["explorer"] |= {
        "max_timeout": 900,
        "max_retry_times": 0,
        "dynamic_timeout": {"enable": True, "ratio": 20.0, "warmup_min_steps": 1},
    }
    operators = [{"name": "field_filter", "args": {"field": "prompt", "pattern": r"\d\d\+"}}]
    written = tmp_path / "left" / "rows.jsonl"
    config["data_processor"] = {"task_pipeline": {"operators": operators, "output": {"path": str(written)}}}
    run = start(config)
    assert await run.ends() == 0, run.output
    left = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    assert left == [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(10, 32)]
    bus = await join(run.config, "test")
    sampled = [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    await bus.close()
    asked = {group.task.ordinal: group.experiences[0].prompt_text for group in sampled}
    assert asked == {ordinal: left[ordinal]["prompt"] for ordinal in range(4 * STEPS)}
    assert {group.task.ordinal: group.attempt for group in sampled} == dict.fromkeys(asked, 1) | {10: 2}
    assert run.summary()["tasks"]["quarantined"] == 0
    log = (run.config.run_dir / "log" / "explorer.log").read_text(encoding="utf-8")
    (limit,) = re.findall(r"task_failed .*no answer within ([\d.]+) s", log)
    assert float(limit) < 900 / 10

    began = time.time()
    late = start(config, "monitor", file="late.yaml")
    assert await late.ends() == 0, late.output
    assert time.time() - began < 60, "it did not take the run's word that it is over"
    recorded = (run.config.run_dir / "monitor" / "wandb").glob("offline-run-*")
    assert sorted(path.name.rpartition("-")[2] for path in recorded) == ["explorer", "trainer"]


def _stored(path: str, groups: int) -> None:
    """A store as a run of so many groups leaves it."""
    store = store_at(place_of(path))
    store.open("tests/sampled")
    for ordinal in range(groups):
        identity = TaskIdentity(ordinal=ordinal, batch=ordinal // 4, taskset="sums", epoch=0, index=ordinal)
        experiences = tuple(
            Experience(
                position=position,
                tokens=[49, 43, 49, 61, 50 + position, 10],
                prompt_length=4,
                action_mask=[1, 1],
                logprobs=[-0.5, -0.25],
                token_versions=[0, 0],
                reward=float(position % 2),
                prompt_text="1+1=",
                response_text=f"{position}\n",
            )
            for position in range(4)
        )
        group = GroupSampled(
            run="tests/sampled", task=identity, repeat_times=4, explorer="e", incarnation=1, experiences=experiences
        )
        store.write([row(ordinal + 1, group, each, 1.0) for each in experiences], ordinal + 1)
    store.settle()
    store.close()


@pytest.mark.chaos
async def test_two_epochs_over_a_store_train_on_each_experience_twice_under_names_of_its_own(
    start, config, tmp_path
) -> None:
    path = f"sqlite:///{tmp_path}/sampled.db"
    _stored(path, groups=10)
    changed = copy.deepcopy(config) | {"mode": "train", "name": "again"}
    buffer = {"storage_type": "sql", "path": path}
    changed["buffer"] = {"train_batch_size": 16, "total_epochs": 2, "trainer_input": {"experience_buffer": buffer}}
    run = start(changed)
    assert await run.ends() == 0, run.output
    assert (run.summary()["steps"], run.summary()["experiences"]["trained"]) == (5, 2 * 40)
    ledger = checkpoints(run.config.run_dir)[-1].ledger()
    assert [sequence in ledger.sequences for sequence in (1, 10, 11, 20, 21)] == [True] * 4 + [False]
