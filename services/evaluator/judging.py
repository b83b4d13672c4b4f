"""One evaluation: every task of one eval taskset, answered by one engine whose weights do not change meanwhile."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from schemas.experiences import Experience
from schemas.tasks import TaskIdentity
from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries
from services.inference.engine import Engine, Sampling
from services.rollout.errors import TaskFailed
from services.rollout.policy import NO_AUXILIARIES, Policy, prompting_of, sampling_of
from services.rollout.runner import answer
from services.rollout.scores import taskset_scores
from services.rollout.tasks import released
from services.rollout.tasksets import Taskset
from services.rollout.workflows import workflow_named

log = structlog.get_logger()


@dataclass(frozen=True)
class Judgement:
    """The metrics of one taskset under one version: `<metric>/mean@k` and so on."""

    taskset: str
    tasks: int
    metrics: dict[str, float]
    duration_s: float


async def judge(
    config: RunConfig, engine: Engine, taskset: Taskset, auxiliary: Auxiliaries = NO_AUXILIARIES
) -> Judgement:
    """Answer every task of `taskset` and score the answers. Tasks that fail are counted apart."""
    started = time.monotonic()
    room = asyncio.Semaphore(config.explorer.runner_per_model)
    policy = partial(Policy, engine, prompting=prompting_of(config), auxiliary=auxiliary)
    answers = await asyncio.gather(*(_answered(config, policy, taskset, index, room) for index in range(len(taskset))))
    metrics = taskset_scores([_values(experiences) for experiences in answers])
    metrics["failed_tasks"] = float(sum(not experiences for experiences in answers))
    return Judgement(taskset.name, len(answers), metrics, time.monotonic() - started)


async def _answered(
    config: RunConfig, policy: Callable[[Sampling], Policy], taskset: Taskset, index: int, room: asyncio.Semaphore
) -> Sequence[Experience]:
    task = released(
        taskset.config,
        taskset.row(index),
        TaskIdentity(ordinal=index, batch=0, taskset=taskset.name, epoch=0, index=index),
        run=config.run_name,
        repeat_times=config.generation(taskset.config).n,
        rollout_args=config.rollout_args(taskset.config),
    )
    async with room:
        try:
            return await answer(
                task,
                workflow_named(task.workflow),
                policy(sampling_of(task.rollout_args)),
                max_retry_times=config.explorer.max_retry_times,
                max_timeout_s=config.explorer.max_timeout,
            )
        except TaskFailed as error:
            log.warning("evaluation_task_failed", task=task.task.task_id, error=str(error))
            return ()


def _values(experiences: Sequence[Experience]) -> list[dict[str, float]]:
    return [{"reward": experience.reward, **experience.metrics} for experience in experiences]
