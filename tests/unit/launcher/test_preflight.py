"""Rows of data that cannot be trained on are found before anything starts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
