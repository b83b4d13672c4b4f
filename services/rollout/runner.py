"""Answers a task: all its repetitions at once, each with tries and a time limit. All succeed, or the task fails."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_not_exception_type, stop_after_attempt
from tenacity.wait import wait_exponential

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.engine import EngineDied
from services.rollout.errors import AuxiliaryMissing, EpisodeInvalid, PromptTooLong, TaskFailed, UnknownName
from services.rollout.policy import Policy
from services.rollout.workflow import AnyWorkflow, GroupWorkflow, Workflow

log = structlog.get_logger(__name__)

# Another try would fail in the same way.
FINAL_ERRORS = (AuxiliaryMissing, EngineDied, EpisodeInvalid, PromptTooLong, UnknownName)


@dataclass(frozen=True)
class _Patience:
    """How often an episode is tried, and for how long each time."""

    max_retry_times: int
    max_timeout_s: float


async def answer(
    task: TaskReleased, workflow: AnyWorkflow, policy: Policy, *, max_retry_times: int, max_timeout_s: float
) -> tuple[Experience, ...]:
    """The experiences of all `repeat_times` answers, by position and step.

    Raises:
        TaskFailed: a position (or, of a `GroupWorkflow`, the group) has no answer after `1 + max_retry_times` tries of
            at most `max_timeout_s` each. The other positions are cancelled.
        EngineDied: no task can be answered any more.
    """
    patience = _Patience(max_retry_times, max_timeout_s)
    if isinstance(workflow, GroupWorkflow):
        return await _group(task, workflow, policy, patience)
    try:
        async with asyncio.TaskGroup() as group:
            episodes = [
                group.create_task(_episode(task, workflow, policy.at(position), position, patience))
                for position in range(task.repeat_times)
            ]
    except BaseExceptionGroup as failures:
        worst = _worst(failures.exceptions)
        raise worst from worst.__cause__
    return tuple(experience for episode in episodes for experience in episode.result())


async def _episode(
    task: TaskReleased, workflow: Workflow, policy: Policy, position: int, patience: _Patience
) -> tuple[Experience, ...]:
    async def attempt() -> tuple[Experience, ...]:
        answered = await workflow.episode(task, policy, position)
        return _checked([answered] if isinstance(answered, Experience) else answered, [position])

    return await _tried(task, attempt, position, patience)


async def _group(
    task: TaskReleased, workflow: GroupWorkflow, policy: Policy, patience: _Patience
) -> tuple[Experience, ...]:
    async def attempt() -> tuple[Experience, ...]:
        answered = await workflow.group_episodes(task, policy, task.repeat_times)
        return _checked(answered, range(task.repeat_times))

    return await _tried(task, attempt, None, patience)


async def _tried(
    task: TaskReleased,
    attempt: Callable[[], Awaitable[tuple[Experience, ...]]],
    position: int | None,
    patience: _Patience,
) -> tuple[Experience, ...]:
    attempts = 0
    try:
        async for trying in AsyncRetrying(
            stop=stop_after_attempt(1 + patience.max_retry_times),
            wait=wait_exponential(multiplier=0.05, max=5.0),
            retry=retry_if_not_exception_type((asyncio.CancelledError, *FINAL_ERRORS)),
            before_sleep=lambda state: _tell(task, position, state),
            reraise=True,
        ):
            with trying:
                attempts = trying.retry_state.attempt_number
                async with asyncio.timeout(patience.max_timeout_s):
                    return await attempt()
    except EngineDied:
        raise
    except Exception as error:  # whatever a user's workflow raises is this task's failure
        reason = described(error, patience.max_timeout_s)
        raise TaskFailed(task.task.task_id, position, attempts, reason) from error
    raise AssertionError("unreachable: the last try either returns or raises")


def _checked(answered: Iterable[Experience], positions: Sequence[int]) -> tuple[Experience, ...]:
    """The experiences by position and step: of each of `positions` one or more, and of no other.

    Raises:
        EpisodeInvalid: they are not that.
    """
    experiences = tuple(answered)
    if not experiences:
        raise EpisodeInvalid("the workflow returned no experience")
    for experience in experiences:
        if not isinstance(experience, Experience):
            raise EpisodeInvalid(f"the workflow returned a {type(experience).__name__}, not an Experience")
        if experience.position not in positions:
            wanted = positions[0] if len(positions) == 1 else f"0 to {positions[-1]}"
            raise EpisodeInvalid(f"an experience of position {experience.position}, where {wanted} was asked for")
    missing = sorted(set(positions) - {experience.position for experience in experiences})
    if missing:
        raise EpisodeInvalid(f"the workflow returned no experience of position {', '.join(map(str, missing))}")
    steps = [(experience.position, experience.step) for experience in experiences]
    if len(set(steps)) < len(steps):
        twice = [step for _, step in steps]
        raise EpisodeInvalid(f"two experiences of one episode have the same step: {twice}")
    return tuple(sorted(experiences, key=lambda experience: (experience.position, experience.step)))


def described(error: BaseException, max_timeout_s: float) -> str:
    """An error in one line."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {max_timeout_s:g} s"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tell(task: TaskReleased, position: int | None, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning(
        "episode_retried", task=task.task.task_id, position=position, attempt=state.attempt_number, error=repr(error)
    )


def _worst(failures: Sequence[BaseException]) -> BaseException:
    """Which of several failures to tell: one that is no task's, else that of the lowest position."""
    others = [failure for failure in failures if not isinstance(failure, TaskFailed)]
    tasks = [failure for failure in failures if isinstance(failure, TaskFailed)]
    return others[0] if others else min(tasks, key=lambda failure: failure.position or 0)
