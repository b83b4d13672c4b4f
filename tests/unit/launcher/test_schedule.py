"""A schedule over a run of epochs is laid out for the steps that its rows make."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.config.derive import resolved
from services.config.schedule import schedule_steps
from services.config.tree import RunConfig
from services.launcher.schedule import with_schedule

COSINE = {"lr_scheduler_type": "cosine"}


def _config(tmp_path: Path, rows: int, **more: Any) -> RunConfig:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": "1+1", "answer": "2"}) + "\n" for _ in range(rows)))
    taskset = {"path": str(path), "format": {"prompt_key": "question", "response_key": "answer"}}
    tree: dict[str, Any] = {
        "model": {"model_path": "m"},
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 4, "optimizer": more.pop("optimizer", COSINE)},
        "buffer": {"batch_size": 5, "total_epochs": 3, "explorer_input": {"taskset": taskset}, **more},
    }
    return resolved(RunConfig.model_validate(tree))


@pytest.mark.parametrize(("rows", "steps"), [(20, 12), (21, 12), (25, 15), (1, 1)])
def test_the_rows_of_all_epochs_are_counted(tmp_path: Path, rows: int, steps: int) -> None:
    config = with_schedule(_config(tmp_path, rows))
    assert schedule_steps(config) == steps
    assert config.total_steps is None


def test_steps_that_are_given_are_not_counted_again(tmp_path: Path) -> None:
    assert schedule_steps(with_schedule(_config(tmp_path, 20, total_steps=7))) == 7
    given = COSINE | {"total_training_steps": 9}
    assert schedule_steps(with_schedule(_config(tmp_path, 20, optimizer=given))) == 9


def test_a_constant_rate_counts_nothing(tmp_path: Path) -> None:
    config = _config(tmp_path, 20, optimizer={"lr_warmup_steps": 2})
    assert with_schedule(config) is config
