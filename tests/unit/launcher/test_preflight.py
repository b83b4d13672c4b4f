"""Rows of data that cannot be trained on are found before anything starts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.config.load import load
from services.config.tree import RunConfig
from services.launcher.preflight import problems
from services.trainer.pipeline import registry


def _config(rows: dict[str, Any], **given: Any) -> RunConfig:
    model, engine = {"model_path": "none"}, {"rollout_model": {"engine_type": "fake"}}
    tree = {
        "mode": "train",
        "algorithm": {"algorithm_type": "sft"},
        "model": model,
        "explorer": engine,
        "buffer": {"train_batch_size": 4, "trainer_input": {"experience_buffer": rows}},
    }
    return RunConfig.model_validate(tree | given)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    good, bad = {"prompt": "1+1=", "response": "2"}, {"prompt": "2+2=", "response": ["4"]}
    path.write_text(json.dumps(good) + "\n", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text(json.dumps(bad) + "\n", encoding="utf-8")
    return str(path)


def _told(config: RunConfig) -> list[str]:
    return [problem.message for problem in problems(config)]


def test_rows_that_are_what_the_format_says_are_no_problem(rows: str) -> None:
    buffer = {"storage_type": "file", "path": rows, "format": {"prompt_type": "plaintext"}}
    assert _told(_config(buffer)) == []


def test_the_row_and_the_key_that_are_wrong_are_told(rows: str) -> None:
    bad = rows.replace("rows.jsonl", "bad.jsonl")
    buffer = {"storage_type": "file", "path": bad, "format": {"prompt_type": "plaintext"}}
    assert _told(_config(buffer)) == [f"{bad}, row 0: 'response' holds a list, not a text"]
    assert _told(_config({"storage_type": "file", "path": rows})) == [
        f"{rows}, row 0: 'message' is no key (there: 'prompt', 'response')"
    ]


def test_an_order_that_rows_cannot_have_is_told(rows: str) -> None:
    buffer = {"storage_type": "file", "path": rows, "format": {"prompt_type": "plaintext"}}
    (told,) = _told(_config(buffer | {"data_selector": {"selector_type": "shufle"}}))
    assert told.startswith(f"{rows}: data_selector: unknown selector_type 'shufle'")


OPERATOR = """\
from services.trainer.pipeline.outcome import Outcome
from services.trainer.pipeline.registry import register_operator

@register_operator("shortest")
def shortest(experiences, count=1):
    return Outcome(tuple(sorted(experiences, key=lambda each: each.response_length)[:count]))
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(registry, "_OPERATORS", dict(registry.BUILT_IN))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "shortest.py").write_text(OPERATOR, encoding="utf-8")
    yield tmp_path / "plugins"
    sys.modules.pop("trinity_plugin_shortest", None)


def test_operators_of_plug_ins_are_looked_up(rows: str, plugins: Path) -> None:
    buffer = {"storage_type": "file", "path": rows, "format": {"prompt_type": "plaintext"}}

    def told(**operator: Any) -> list[str]:
        processor = {"experience_pipeline": {"operators": [operator]}}
        return _told(_config(buffer, plugin_dirs=[str(plugins)], data_processor=processor))

    key = "data_processor.experience_pipeline.operators"
    assert told(name="shortest", args={"count": 2}) == []
    (unfit,) = told(name="shortest", args={"most": 2})
    assert unfit.startswith(f"{key}: operator 'shortest' does not take args ['most']")
    (unknown,) = told(name="longest")
    assert unknown.startswith(f"{key}: there is no operator 'longest': known are ")


def test_expert_rows_are_looked_at_too(rows: str) -> None:
    expert = {"storage_type": "file", "path": f"{rows}.gone", "format": {"prompt_type": "plaintext"}}
    buffer = {"train_batch_size": 4, "trainer_input": {"auxiliary_buffers": {"sft_dataset": expert}}}
    told = _told(_config({}, algorithm={"algorithm_type": "mix"}, buffer=buffer))
    assert told == [f"{rows}.gone: is not there"]


def test_a_trainer_on_several_nodes_needs_rays_address(monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    buffer = {"storage_type": "file", "path": rows, "format": {"prompt_type": "plaintext"}}
    cluster = {"node_num": 2, "gpu_per_node": 8}
    (told,) = _told(_config(buffer, cluster=cluster))
    assert "are on several nodes (8 on node 0, 8 on node 1), and RAY_ADDRESS is not set" in told
    assert _told(_config(buffer, cluster=cluster | {"node_rank": 1})) == []
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    assert _told(_config(buffer, cluster=cluster)) == []


def test_a_checkpoint_to_begin_from_must_be_one_and_of_another_run(rows: str, tmp_path: Path) -> None:
    (tmp_path / "other" / "global_step_4" / "actor").mkdir(parents=True)
    found = _config({"path": rows}, checkpoint_job_dir=str(tmp_path / "own"))
    cases = {
        "other/global_step_4": [],
        "other/global_step_5": ["is no checkpoint: name a directory global_step_N that holds actor/"],
        "other/.global_step_4.1.writing": ["is no checkpoint"],
        "own/global_step_4": ["is of this very run: leave it out, and give `trinity run --from-step`"],
    }
    for place in ("other/.global_step_4.1.writing", "own/global_step_4"):
        (tmp_path / place / "actor").mkdir(parents=True)
    for place, words in cases.items():
        trainer = found.trainer.model_copy(update={"resume_from_path": str(tmp_path / place)})
        told = [each for each in _told(found.model_copy(update={"trainer": trainer})) if "resume_from_path" in each]
        assert [word in each for word, each in zip(words, told, strict=True)] == [True] * len(words), told


def _ppo(tmp_path: Path, **model: Any) -> RunConfig:
    (tmp_path / "model").mkdir(exist_ok=True)
    judge = {"name": "judge", "model_path": str(tmp_path / "judge")}
    return RunConfig.model_validate(
        {
            "algorithm": {"algorithm_type": "ppo"},
            "model": {"model_path": str(tmp_path / "model"), **model},
            "explorer": {"auxiliary_models": [judge]},
        }
    )


def test_a_critic_and_a_judge_that_are_not_there_are_told_by_their_keys(tmp_path: Path) -> None:
    absent = str(tmp_path / "critic")
    told = {problem.key: problem.message for problem in problems(_ppo(tmp_path, critic_model_path=absent))}
    assert told["model.critic_model_path"] == f"model.critic_model_path={absent}: there is no such directory"
    key = "explorer.auxiliary_models[0].model_path"
    assert told[key] == f"{key}={tmp_path}/judge: there is no such directory"
    assert "model.model_path" not in told


def test_a_critic_on_a_hub_or_none_is_no_problem(tmp_path: Path) -> None:
    for given in ({}, {"critic_model_path": "someone/critic"}, {"critic_model_path": str(tmp_path)}):
        assert "model.critic_model_path" not in {problem.key for problem in problems(_ppo(tmp_path, **given))}


def test_the_path_of_a_critic_in_trainer_config_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tree = {
        "algorithm": {"algorithm_type": "ppo"},
        "model": {"model_path": str(tmp_path / "model")},
        "trainer": {"trainer_config": {"critic": {"model": {"path": str(tmp_path / "critic")}}}},
        "buffer": {"explorer_input": {"taskset": {"name": "sums", "path": str(tmp_path / "rows.jsonl")}}},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(tree), encoding="utf-8")
    told = [problem.key for problem in problems(load(tmp_path / "run.yaml").config)]
    assert "model.critic_model_path" in told
