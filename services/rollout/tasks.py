"""From a row of a taskset to the task that is released: which workflow, which reward, which arguments."""

from collections.abc import Mapping
from typing import Any

from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.inference.config import GenerationConfig
from services.rollout.config import DEFAULT_WORKFLOW, TasksetConfig

NO_FLOOR = WeightVersion()


def released(
    settings: TasksetConfig,
    row: Mapping[str, Any],
    task: TaskIdentity,
    *,
    run: str,
    repeat_times: int,
    rollout_args: Mapping[str, Any],
    floor: WeightVersion = NO_FLOOR,
    batch_tasks: int = 0,
    released_at: float = 0.0,
) -> TaskReleased:
    """The message that releases `task`. `rollout_args` are the defaults, over which the taskset's own are laid.

    A row's own workflow and reward, under `workflow_key` and `reward_fn_key`, go before the taskset's.
    """
    layout = settings.format
    return TaskReleased(
        run=run,
        task=task,
        repeat_times=repeat_times,
        workflow=_named(row, layout.workflow_key) or settings.default_workflow_type or DEFAULT_WORKFLOW,
        reward_fn=_named(row, layout.reward_fn_key) or settings.default_reward_fn_type,
        row=dict(row),
        format_args=layout.model_dump(mode="json"),
        rollout_args={**rollout_args, **chosen(settings.rollout_args)},
        workflow_args=settings.workflow_args,
        reward_fn_args=settings.reward_fn_args,
        floor=floor,
        batch_tasks=batch_tasks,
        released_at=released_at,
    )


def chosen(arguments: GenerationConfig) -> dict[str, Any]:
    """The sampling arguments that were given, without those left open."""
    return {name: value for name, value in arguments.model_dump(mode="json").items() if value not in (None, [])}


def _named(row: Mapping[str, Any], key: str) -> str | None:
    name = row.get(key) if key else None
    return str(name) if name else None
