"""A whole run whose rewards come from auxiliary models, in explorer and evaluator."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from schemas.reports import EvaluationReported

pytestmark = pytest.mark.e2e

JUDGE = {"name": "judge", "engine_type": "fake", "extra_engine_args": {"lines": ["[0.0, 0.25, 0.5, 1.0]"]}}
SCORER = {
    "name": "scorer",
    "engine_type": "fake",
    "runner": "pooling",
    "extra_engine_args": {"scores": {"user: 0+0=\nassistant: ": -1.5, "user: 1+1=\nassistant: ": 2.5}},
}
RATER = {"name": "rater", "engine_type": "fake", "extra_engine_args": {"lines": ['```json\n{"rating": 7}\n```']}}


def _asking(judge: str) -> dict[str, Any]:
    return {"judge": judge, "judge_max_tokens": 40}


async def _first(bus: Bus, stream: Stream, kind: type, number: int) -> list[Any]:
    """The first messages of a kind, as they come."""
    found: list[Any] = []
    async with asyncio.timeout(90.0):
        async for delivery in bus.read(stream, start=1):
            found += [delivery.message] if isinstance(delivery.message, kind) else []
            if len(found) == number:
                return found
    raise AssertionError("unreachable: a followed stream has no end")


async def test_auxiliary_models_reward_training_and_evaluation(
    config: dict[str, Any], start: Any, tmp_path: Path
) -> None:
    given = config["buffer"]["explorer_input"]
    given["taskset"] |= {"default_workflow_type": "math_ruler_workflow", "workflow_args": _asking("judge")}
    rated = {"default_workflow_type": "rubric_judge_workflow", "workflow_args": _asking("rater")}
    (tmp_path / "two.jsonl").write_text('{"prompt": "0+0=", "answer": "0"}\n{"prompt": "1+1=", "answer": "2"}\n')
    scored = {"default_workflow_type": "reward_model_workflow", "path": str(tmp_path / "two.jsonl")}
    given["eval_tasksets"] = [given["taskset"] | rated | {"name": "rated"}, given["taskset"] | scored | {"name": "two"}]
    config["buffer"]["total_steps"] = 3
    config["model"]["max_prompt_tokens"] = 2000
    config["explorer"] |= {"auxiliary_models": [SCORER, JUDGE, RATER], "eval_interval": 2}
    run = start(config)
    async with run.bus() as bus:
        groups = await _first(bus, Stream.EXPERIENCES, GroupSampled, 8)
        reports = await _first(bus, Stream.METRICS, EvaluationReported, 2)
    assert await run.ends() == 0, run.output[-3000:]
    for group in groups:
        assert [experience.reward for experience in group.experiences] == [0.0, 0.25, 0.5, 1.0]
    metrics = {report.taskset: report.metrics for report in reports}
    assert metrics["rated"]["reward/mean@1"] == pytest.approx(0.7)
    assert metrics["two"]["reward_model_score/mean@1"] == metrics["two"]["reward/mean@1"] == pytest.approx(0.5)
    assert run.summary()["steps"] == 3
