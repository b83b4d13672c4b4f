"""A past stream with other rewards: the same groups in the same order, scored again by a reward function.

Nothing else of an experience changes. An answer to a truncated prompt keeps its reward of 0, as nothing is learned
from it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.config.tree import RunConfig
from services.replay.errors import ReplayError
from services.replay.span import Span
from services.rollout.errors import RolloutError, nearest
from services.rollout.plugins import load_own
from services.rollout.rewards import Answer, Reward, reward_named
from services.rollout.tasksets import Taskset, open_taskset

PROMPT_TRUNCATED = "prompt_truncated"


@dataclass(frozen=True)
class Rescorer:
    """A reward function with its arguments, and the tasksets whose rows hold the true answers."""

    name: str
    reward: Reward
    arguments: Mapping[str, Any]
    tasksets: Mapping[str, Taskset]

    def row(self, task: TaskIdentity) -> dict[str, Any]:
        """The row that a task was made of.

        Raises:
            ReplayError: the configuration has no such taskset, or the taskset no such row.
        """
        taskset = self.tasksets.get(task.taskset)
        if taskset is None:
            raise ReplayError(
                f"task {task.task_id} is of taskset {task.taskset!r}, which the configuration does not have: "
                f"{nearest(task.taskset, self.tasksets)} (buffer.explorer_input)"
            )
        try:
            return taskset.row(task.index)
        except IndexError as error:
            raise ReplayError(
                f"task {task.task_id}: {error}: give the taskset the file that the run was sampled with "
                f"({taskset.config.path} now)"
            ) from error

    def rescored(self, group: GroupSampled, run: str) -> GroupSampled:
        """The group as one of `run`, with new rewards and metrics.

        Raises:
            ReplayError: the reward function fails, or gives what is no set of finite scores.
        """
        row = self.row(group.task)
        key = self.tasksets[group.task.taskset].config.format.response_key
        truth = row.get(key)
        experiences = tuple(
            self._judged(experience, _answer(experience, _text(truth), row), group) for experience in group.experiences
        )
        return group.model_copy(update={"run": run, "experiences": experiences})

    def _judged(self, experience: Experience, answer: Answer, group: GroupSampled) -> Experience:
        if PROMPT_TRUNCATED in experience.metrics:
            return experience
        try:
            scores = {name: float(score) for name, score in self.reward(answer, **self.arguments).items()}
            kept = {name: getattr(experience, name) for name in Experience.model_fields}
            return Experience(**{**kept, "reward": sum(scores.values()), "metrics": scores})
        except ValidationError as error:
            raise self._failed(group, experience, f"scores {scores} are not all finite") from error
        except Exception as error:  # whatever a user's reward raises
            raise self._failed(group, experience, f"{type(error).__name__}: {error}") from error

    def _failed(self, group: GroupSampled, experience: Experience, why: str) -> ReplayError:
        return ReplayError(
            f"reward {self.name!r} fails on task {group.task.task_id}, position {experience.position}: {why}"
        )


async def check_rows(bus: Bus, span: Span, rescorer: Rescorer) -> int:
    """Look up the row of every group of the span. Returns the number of experiences.

    Raises:
        ReplayError: one is not there.
    """
    experiences = 0
    async for answer in answers_of(bus, span):
        if isinstance(answer, GroupSampled):
            rescorer.row(answer.task)
            experiences += len(answer.experiences)
    return experiences


async def answers_of(bus: Bus, span: Span) -> AsyncIterator[GroupSampled | TaskAbandoned]:
    """What the span of a stream holds, without what cannot be read."""
    async for delivery in bus.read(Stream.EXPERIENCES, start=span.first, follow=False):
        if span.last is not None and delivery.sequence > span.last:
            return
        if isinstance(delivery.message, GroupSampled | TaskAbandoned):
            yield delivery.message


def reward_arguments(given: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments from `name=value`, the value read as YAML.

    Raises:
        ReplayError: one is not in that form.
    """
    import yaml

    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ReplayError(f"--reward-args {text!r} is not NAME=VALUE: write for example with_think=true")
        try:
            arguments[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ReplayError(f"--reward-args {text!r}: the value is no YAML") from error
    return arguments


def _answer(experience: Experience, truth: str, row: dict[str, Any]) -> Answer:
    return Answer(
        response=experience.response_text,
        truth=truth,
        prompt=experience.prompt_text,
        row=row,
        response_length=experience.response_length,
        is_truncated=experience.is_truncated,
    )


def _text(truth: object) -> str:
    return "" if truth is None else str(truth)


def rescorer_of(config: RunConfig, name: str, arguments: Mapping[str, Any]) -> Rescorer:
    """The rescorer of a configuration, with its plug-ins loaded.

    Raises:
        ReplayError: a plug-in, a taskset or the reward is not there, or the reward does not take the arguments.
    """
    try:
        load_own(config)
        reward = reward_named(name)
        tasksets = {settings.name: open_taskset(settings) for settings in (*config.tasksets, *config.eval_tasksets)}
    except RolloutError as error:
        raise ReplayError(str(error)) from error
    try:
        inspect.signature(reward).bind(None, **arguments)
    except TypeError as error:
        raise ReplayError(f"reward {name!r} does not take these --reward-args: {error}") from error
    return Rescorer(name, reward, arguments, tasksets)


async def rescored_of(
    bus: Bus, span: Span, rescorer: Rescorer, run: str
) -> AsyncIterator[GroupSampled | TaskAbandoned]:
    """The span of a stream as answers of `run`, with new rewards. Abandoned tasks stay what they are."""
    async for answer in answers_of(bus, span):
        if isinstance(answer, GroupSampled):
            yield await asyncio.to_thread(rescorer.rescored, answer, run)
        else:
            yield answer.model_copy(update={"run": run})
