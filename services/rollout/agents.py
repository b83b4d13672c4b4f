"""Agents that talk to the policy through the OpenAI client, as workflows: what they had sampled becomes experiences.

    @register_agent("my_agent_workflow")
    async def solve(client: AsyncOpenAI, task: TaskReleased) -> float | str: ...

The agent may call whatever framework it likes, with `client`, or with its address (`client.base_url`, `client.api_key`)
and any model's name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.answers import Answer
from services.rollout.errors import EpisodeInvalid
from services.rollout.policy import Policy
from services.rollout.prompts import truth_of
from services.rollout.rewards import reward_named

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Outcome = float | str | Mapping[str, float]
"""An agent's end: its reward, named scores whose sum is the reward, or a text for the task's reward function."""

Agent = Callable[["AsyncOpenAI", TaskReleased], Awaitable[Outcome]]


class OpenAIAgentWorkflow:
    """Lets an agent work on a task. Each conversation that it had with the policy is an experience, a step.

    All have the same reward: what the agent says, or what the task's reward function says of the text that it returns.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Sequence[Experience]:
        async with policy.recording() as recording:
            outcome = await self._agent(recording.client, task)
            scores = await self._scores(task, outcome)
            return recording.experiences(position, sum(scores.values()), scores)

    async def _scores(self, task: TaskReleased, outcome: Outcome) -> Mapping[str, float]:
        if isinstance(outcome, str):
            return await asyncio.to_thread(self._judged, task, outcome)
        if isinstance(outcome, Mapping):
            return {str(name): float(score) for name, score in outcome.items()}
        if isinstance(outcome, int | float):
            return {"score": float(outcome)}
        raise EpisodeInvalid(f"the agent returned a {type(outcome).__name__}: it has to return a reward or a text")

    def _judged(self, task: TaskReleased, text: str) -> Mapping[str, float]:
        if task.reward_fn is None:
            raise EpisodeInvalid(
                f"workflow {task.workflow!r} returned a text, which needs a reward: set default_reward_fn_type"
            )
        return reward_named(task.reward_fn)(Answer(text, truth_of(task), row=task.row), **task.reward_fn_args)
