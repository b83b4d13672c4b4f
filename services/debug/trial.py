"""One task of a configuration, answered once by its workflow."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.experiences import Experience
from schemas.tasks import TaskIdentity, TaskReleased
from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries
from services.inference.engine import Engine
from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError
from services.rollout.plugins import load_own
from services.rollout.policy import Policy, prompting_of, sampling_of
from services.rollout.runner import answer
from services.rollout.tasks import released
from services.rollout.tasksets import open_taskset
from services.rollout.workflow import AnyWorkflow
from services.rollout.workflows import workflow_named


@dataclass(frozen=True)
class Trial:
    """A task and what came of it, in `seconds`."""

    task: TaskReleased
    experiences: Sequence[Experience]
    seconds: float


def chosen_task(config: RunConfig, row: int = 0) -> tuple[TaskReleased, AnyWorkflow]:
    """Row `row` of the first taskset (of the first eval taskset, where there is no other), and its workflow.

    Raises:
        RolloutError: there is no such taskset or row, or no such workflow, or a plug-in cannot be imported.
    """
    load_own(config)
    settings = _taskset(config)
    taskset = open_taskset(settings)
    if not 0 <= row < len(taskset):
        raise TasksetError(taskset.name, f"no row {row}: it has {len(taskset)}, from 0")
    task = released(
        taskset.config,
        taskset.row(row),
        TaskIdentity(ordinal=0, batch=0, taskset=taskset.name, epoch=0, index=row),
        run=config.run_name,
        repeat_times=settings.repeat_times or 1,
        rollout_args=config.rollout_args(taskset.config),
    )
    return task, workflow_named(task.workflow)


def _taskset(config: RunConfig) -> TasksetConfig:
    tasksets = [*config.tasksets, *config.eval_tasksets]
    if not tasksets:
        raise TasksetError("", "there is none: set buffer.explorer_input.taskset")
    return tasksets[0]


async def tried(
    config: RunConfig, task: TaskReleased, workflow: AnyWorkflow, engine: Engine, auxiliary: Auxiliaries
) -> Trial:
    """All answers to `task`, without a second try.

    Raises:
        TaskFailed: an answer failed; its cause is the workflow's own error.
        EngineDied: the engine does not answer.
    """
    policy = Policy(engine, sampling_of(task.rollout_args), prompting_of(config), auxiliary)
    started = time.monotonic()
    experiences = await answer(task, workflow, policy, max_retry_times=0, max_timeout_s=config.explorer.max_timeout)
    return Trial(task, experiences, time.monotonic() - started)
