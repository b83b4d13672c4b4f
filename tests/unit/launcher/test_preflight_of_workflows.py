"""Workflows and auxiliary models that would fail later are found before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from services.config.load import load
from services.config.tree import RunConfig
from services.launcher.preflight import problems
from services.prepare.quickstart import prepare_data
from services.rollout.tasksets import open_taskset

ROOT = Path(__file__).parents[3]
EXAMPLES = ("frozen_lake", "on_policy_distill", "ruler", "sudoku")


def _config(tmp_path: Path, workflow: str, **explorer: Any) -> RunConfig:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n', encoding="utf-8")
    taskset = {"name": "sums", "path": str(tmp_path / "rows.jsonl"), "default_workflow_type": workflow}
    return RunConfig.model_validate(
        {
            "model": {"model_path": "none"},
            "explorer": {"rollout_model": {"engine_type": "fake"}, **explorer},
            "buffer": {"explorer_input": {"taskset": taskset}},
        }
    )


def _told(config: RunConfig) -> list[str]:
    return [problem.message for problem in problems(config)]


def test_a_judged_taskset_needs_a_model_that_judges(tmp_path: Path) -> None:
    said = ["the workflow needs an auxiliary model: name it under explorer.auxiliary_models"]
    assert _told(_config(tmp_path, "math_ruler_workflow")) == said
    judge = {"engine_type": "fake", "name": "judge"}
    assert _told(_config(tmp_path, "math_ruler_workflow", auxiliary_models=[judge])) == []
    assert _told(_config(tmp_path, "math_trainable_ruler_workflow")) == []


def test_a_model_behind_an_address_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"external_model_config": {"enable": True, "model_name": "big", "base_url_env": "JUDGE_URL"}}
    config = _config(tmp_path, "math_workflow", auxiliary_models=[named])
    monkeypatch.delenv("JUDGE_URL", raising=False)
    (said,) = _told(config)
    assert "auxiliary model 'big': the environment variable JUDGE_URL is not set" in said
    monkeypatch.setenv("JUDGE_URL", "http://judge/v1")
    assert _told(config) == []


def test_a_dotted_name_is_imported_before_anything_starts(tmp_path: Path) -> None:
    assert _told(_config(tmp_path, "services.rollout.single_turn.MathWorkflow")) == []
    (said,) = _told(_config(tmp_path, "services.rollout.single_turn.MathWorkflo"))
    assert "did you mean 'services.rollout.single_turn.MathWorkflow'" in said


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_tasks_of_the_shipped_examples_are_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_data(tmp_path / ".cache" / "quickstart")
    monkeypatch.chdir(tmp_path)
    config = load(ROOT / f"configs/examples/{name}.yaml").config
    (taskset,) = config.tasksets
    assert len(open_taskset(taskset)) >= 64
    assert [problem.message for problem in problems(config) if "no such directory" not in problem.message] == []
