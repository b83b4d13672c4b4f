"""The examples in the guides do what the guides say."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.jetstream import connect
from bus.server import LocalServer
from schemas.codec import decode
from schemas.experiences import GroupSampled
from schemas.message import Message
from schemas.reports import Quarantined
from schemas.tasks import TaskIdentity, TaskReleased
from services.inference.auxiliary import Auxiliaries, Defaults, EngineModel
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.rollout.plugins import load_plugins
from services.rollout.policy import Policy
from services.rollout.rewards import REWARDS
from services.rollout.runner import answer
from services.rollout.workflows import WORKFLOWS, workflow_named
from services.trainer.ledger import Ledger

ROOT = Path(__file__).parents[3]
RUN = "project/name"


def _blocks(guide: str, language: str) -> list[str]:
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _golden(name: str) -> Message:
    return decode((ROOT / "tests" / "golden" / f"{name}.v1.msgpack").read_bytes())


@pytest.fixture
def _clean_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("services.rollout.rewards.REWARDS", dict(REWARDS))
    monkeypatch.setattr("services.rollout.workflows.WORKFLOWS", dict(WORKFLOWS))
    yield
    for name in ("second_thought", "debate", "guessing", "agent"):
        sys.modules.pop(f"trinity_plugin_{name}", None)


@pytest.mark.usefixtures("_clean_tables")
async def test_the_plug_in_of_the_guide_answers_a_task(tmp_path: Path) -> None:
    (tmp_path / "second_thought.py").write_text(_blocks("plugins.md", "python")[0])
    load_plugins([tmp_path])
    first = "user: 12 + 30 = ?\nassistant: "
    second = f"{first}about 40\nuser: Check that. Answer with the number alone.\nassistant: "
    policy = Policy(FakeEngine(replies={first: "about 40", second: "42.4"}), Sampling(max_tokens=50))
    task = TaskReleased(
        run=RUN,
        task=TaskIdentity(ordinal=0, batch=0, taskset="sums", epoch=0, index=0),
        repeat_times=1,
        workflow="second_thought_workflow",
        row={"question": "12 + 30 = ?", "answer": "42"},
        reward_fn_args={"tolerance": 0.5},
    )
    (experience,) = await answer(task, workflow_named(task.workflow), policy, max_retry_times=0, max_timeout_s=10)
    assert (experience.prompt_text, experience.response_text) == (second, "42.4")
    assert experience.metrics == {"accuracy": 1.0, "brevity": 0.1}
    assert experience.reward == pytest.approx(1.1)


def _task(workflow: str, repeat_times: int = 1) -> TaskReleased:
    return TaskReleased(
        run=RUN,
        task=TaskIdentity(ordinal=0, batch=0, taskset="sums", epoch=0, index=0),
        repeat_times=repeat_times,
        workflow=workflow,
        row={"question": "12 + 30 = ?", "answer": "4"},
    )


@pytest.mark.usefixtures("_clean_tables")
async def test_the_other_plug_ins_of_the_guide_answer_tasks(tmp_path: Path) -> None:
    for name, block in zip(("debate", "guessing", "agent"), _blocks("plugins.md", "python")[1:], strict=True):
        (tmp_path / f"{name}.py").write_text(block)
    load_plugins([tmp_path])
    judge = Auxiliaries([EngineModel("judge", FakeEngine(lines=["1"]), Defaults())])
    said = {"debate_workflow": ["8", "4"], "guessing_workflow": ["2", "4"], "two_step_workflow": ["5", "4"]}
    answered = {
        name: await answer(
            _task(name, repeat_times=2 if name == "debate_workflow" else 1),
            workflow_named(name),
            Policy(FakeEngine(lines=lines), Sampling(max_tokens=50), auxiliary=judge),
            max_retry_times=0,
            max_timeout_s=60,
        )
        for name, lines in said.items()
    }
    assert [each.reward for each in answered["debate_workflow"]] == [0.0, 1.0]
    (guessed,), (worked,) = answered["guessing_workflow"], answered["two_step_workflow"]
    assert guessed.response_text == "2\nuser: Higher.\nassistant: 4"
    assert (guessed.reward, guessed.metrics["env_steps"]) == (1.0, 2.0)
    assert (worked.reward, int(worked.action_mask.sum())) == (1.0, 2)


async def test_the_readers_of_the_guide_read_what_is_on_the_bus(tmp_path: Path) -> None:
    readers: dict[str, Any] = {}
    for block in _blocks("bus.md", "python"):
        exec(compile(block, "bus.md", "exec"), readers)
    group, quarantined = _golden("group_sampled"), _golden("quarantined")
    assert isinstance(group, GroupSampled)
    assert isinstance(quarantined, Quarantined)
    server = LocalServer(tmp_path / "store")
    await server.start()
    try:
        bus = await connect(server.url, RUN, name="test")
        await bus.declare()
        await bus.publish(group)
        await bus.publish(quarantined)
        assert await readers["look"](server.url, RUN) == [(1, group)]
        ((subject, reason),) = await readers["quarantined"](server.url, RUN)
        await bus.close()
    finally:
        await server.stop()
    assert subject.startswith("trinity.project_name-")
    assert reason == quarantined.reason


def test_the_ledger_of_the_guide_is_a_ledger() -> None:
    text, reuse = _blocks("guarantees.md", "json")
    ledger = Ledger.from_json(text)
    assert (ledger.step, ledger.counts.filtered) == (12, {"abandoned": 4, "dapo_dynamic_sampling": 24})
    assert 57 in ledger.sequences
    assert 56 not in ledger.sequences
    reused = Ledger.from_json(json.dumps(json.loads(text) | json.loads(reuse)))
    assert (reused.needed, reused.sequences.floor) == (41, 55)
    assert json.loads(reused.to_json())["reuse"] == json.loads(reuse)["reuse"]
