"""A taskset's configuration as it travels between members of a run, and how two of one name are told apart."""

from collections.abc import Sequence
from pathlib import Path

from services.rollout.config import TasksetConfig

ROWS = ("storage_type", "path", "split", "subset_name", "generator_args", "data_selector", "weight", "task_pipeline")
"""What decides which rows a taskset has, and in which order they come."""

_SQLITE = "sqlite:///"

ANSWERS = (
    "format",
    "default_workflow_type",
    "default_reward_fn_type",
    "rollout_args",
    "workflow_args",
    "reward_fn_args",
)
"""What decides how its rows are answered and scored."""


def located(config: TasksetConfig) -> TasksetConfig:
    """The same taskset, as it is found from any working directory. A name on a hub stays as it is."""
    changes: dict[str, object] = {"data_selector": config.task_selector or config.data_selector, "task_selector": None}
    if config.storage_type == "file" and config.path:
        changes["path"] = _absolute(config.path)
    elif config.storage_type == "sql" and config.path and config.path.startswith(_SQLITE):
        changes["path"] = f"{_SQLITE}{_absolute(config.path.removeprefix(_SQLITE))}"
    pipeline = config.task_pipeline
    if pipeline is not None:
        inputs = [_absolute(path) for path in pipeline.inputs]
        changes["task_pipeline"] = pipeline.model_copy(update={"inputs": inputs})
    return config.model_copy(update=changes)


def _absolute(path: str) -> str:
    """The path from any working directory, where something is there."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def differences(recorded: TasksetConfig, own: TasksetConfig, fields: Sequence[str] = (*ROWS, *ANSWERS)) -> str:
    """Which of `fields` differ, with both values, in words; empty where none does."""
    left, right = located(recorded), located(own)
    found = [(name, getattr(left, name), getattr(right, name)) for name in fields]
    return "; ".join(f"{name}: {_said(a)} in the run, {_said(b)} here" for name, a, b in found if a != b)


def _said(value: object) -> str:
    text = str(value.model_dump(exclude_defaults=True)) if hasattr(value, "model_dump") else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
