"""Answers a task: all its repetitions at once, each with tries and a time limit. All succeed, or the task fails."""

import asyncio
from collections.abc import Sequence

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_not_exception_type, stop_after_attempt
from tenacity.wait import wait_exponential

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.engine import EngineDied
from services.rollout.errors import EpisodeInvalid, PromptTooLong, TaskFailed, UnknownName
from services.rollout.policy import Policy
from services.rollout.workflow import Workflow

log = structlog.get_logger(__name__)

# Another try would fail in the same way.
FINAL_ERRORS = (EngineDied, EpisodeInvalid, PromptTooLong, UnknownName)


async def answer(
    task: TaskReleased, workflow: Workflow, policy: Policy, *, max_retry_times: int, max_timeout_s: float
) -> tuple[Experience, ...]:
    """The experiences of all `repeat_times` answers, by position and step.

    Raises:
        TaskFailed: a position has no answer after `1 + max_retry_times` tries of at most `max_timeout_s` each. The
            other positions are cancelled.
        EngineDied: no task can be answered any more.
    """
    try:
        async with asyncio.TaskGroup() as group:
            episodes = [
                group.create_task(_tried(task, workflow, policy.at(position), position, max_retry_times, max_timeout_s))
                for position in range(task.repeat_times)
            ]
    except BaseExceptionGroup as failures:
        raise _worst(failures.exceptions) from None
    return tuple(experience for episode in episodes for experience in episode.result())


async def _tried(
    task: TaskReleased, workflow: Workflow, policy: Policy, position: int, max_retry_times: int, max_timeout_s: float
) -> tuple[Experience, ...]:
    attempts = 0
    try:
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(1 + max_retry_times),
            wait=wait_exponential(multiplier=0.05, max=5.0),
            retry=retry_if_not_exception_type((asyncio.CancelledError, *FINAL_ERRORS)),
            before_sleep=lambda state: _tell(task, position, state),
            reraise=True,
        ):
            with attempt:
                attempts = attempt.retry_state.attempt_number
                async with asyncio.timeout(max_timeout_s):
                    return _checked(await workflow.episode(task, policy, position), position)
    except EngineDied:
        raise
    except Exception as error:  # whatever a user's workflow raises is this task's failure
        raise TaskFailed(task.task.task_id, position, attempts, described(error, max_timeout_s)) from error
    raise AssertionError("unreachable: the last try either returns or raises")


def _checked(answered: Experience | Sequence[Experience], position: int) -> tuple[Experience, ...]:
    experiences = (answered,) if isinstance(answered, Experience) else tuple(answered)
    if not experiences:
        raise EpisodeInvalid("the workflow returned no experience")
    for experience in experiences:
        if not isinstance(experience, Experience):
            raise EpisodeInvalid(f"the workflow returned a {type(experience).__name__}, not an Experience")
        if experience.position != position:
            raise EpisodeInvalid(f"an experience of position {experience.position}, where {position} was asked for")
    steps = [experience.step for experience in experiences]
    if len(set(steps)) < len(steps):
        raise EpisodeInvalid(f"two experiences of one episode have the same step: {steps}")
    return experiences


def described(error: BaseException, max_timeout_s: float) -> str:
    """An error in one line."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {max_timeout_s:g} s"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tell(task: TaskReleased, position: int, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning(
        "episode_retried", task=task.task.task_id, position=position, attempt=state.attempt_number, error=repr(error)
    )


def _worst(failures: Sequence[BaseException]) -> BaseException:
    """Which of several failures to tell: one that is no task's, else that of the lowest position."""
    others = [failure for failure in failures if not isinstance(failure, TaskFailed)]
    tasks = [failure for failure in failures if isinstance(failure, TaskFailed)]
    return others[0] if others else min(tasks, key=lambda failure: failure.position)
