"""Workflows of several turns: the policy acts, an environment answers, until the episode is over.

Derive from one of the three, and give it an environment:

- `MultiTurnWorkflow`: the whole conversation is one experience, in which only the policy's replies are actions.
- `StepWiseRewardWorkflow`: each turn is an experience with its own reward.
- `RewardPropagationWorkflow`: each turn is an experience with the reward of the whole episode.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.dialogue import Dialogue
from services.rollout.environment import Environment, Observation
from services.rollout.policy import Policy
from services.rollout.prompts import layout_of, message

DEFAULT_TURNS = 10


@dataclass
class Episode:
    """What has happened: of each turn the state that it was taken in, and what followed."""

    dialogue: Dialogue
    states: list[str] = field(default_factory=list)
    outcomes: list[Observation] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [outcome.reward for outcome in self.outcomes]

    @property
    def is_over(self) -> bool:
        """Whether the environment has ended it."""
        return bool(self.outcomes and self.outcomes[-1].is_over)

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last step, with the number of steps and whether the environment has ended the episode."""
        last = self.outcomes[-1].metrics if self.outcomes else {}
        return {"env_steps": float(len(self.outcomes)), "env_done": float(self.is_over), **last}


class _InEnvironment(ABC):
    """Plays an episode. `workflow_args.max_turns` bounds it where a workflow does not say otherwise."""

    @abstractmethod
    def environment(self, task: TaskReleased, position: int) -> Environment:
        """The world of one answer. All answers to a task should begin in the same state."""

    @abstractmethod
    def experiences(self, episode: Episode, position: int) -> Experience | Sequence[Experience]:
        """What is learned from an episode of at least one turn."""

    def opening(self, task: TaskReleased, first: Observation) -> list[dict[str, str]]:
        """The messages before the first reply."""
        system_prompt = layout_of(task).system_prompt or self.system_prompt(task)
        before = [message("system", system_prompt)] if system_prompt else []
        return [*before, message("user", first.text)]

    def system_prompt(self, task: TaskReleased) -> str | None:
        """The system prompt where the configuration gives none."""
        return None

    def max_turns(self, task: TaskReleased) -> int:
        return int(task.workflow_args.get("max_turns", DEFAULT_TURNS))

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience | Sequence[Experience]:
        world = await asyncio.to_thread(self.environment, task, position)
        try:
            played = await self._played(task, policy, world)
        finally:
            await asyncio.to_thread(world.close)
        if played.dialogue.is_prompt_truncated:
            return played.dialogue.experience(position, 0.0)
        return self.experiences(played, position)

    async def _played(self, task: TaskReleased, policy: Policy, world: Environment) -> Episode:
        found = await asyncio.to_thread(world.reset)
        layout = layout_of(task)
        dialogue = Dialogue.opened(
            policy,
            self.opening(task, found),
            chat_template=layout.chat_template,
            enable_thinking=layout.enable_thinking,
        )
        episode = Episode(dialogue)
        for _ in range(self.max_turns(task)):
            reply = await dialogue.reply()
            if reply is None:
                break
            episode.states.append(found.state)
            found = await asyncio.to_thread(world.step, reply)
            episode.outcomes.append(found)
            if found.is_over:
                break
            dialogue.say(found.text)
        return episode


class MultiTurnWorkflow(_InEnvironment):
    """One experience an episode. The reward is the sum of those of its steps; 0 where there was no room to go on."""

    def reward(self, episode: Episode) -> float:
        return 0.0 if episode.dialogue.is_full else sum(episode.rewards)

    def experiences(self, episode: Episode, position: int) -> Experience | Sequence[Experience]:
        return episode.dialogue.experience(position, self.reward(episode), episode.metrics)


class StepWiseRewardWorkflow(_InEnvironment):
    """One experience a turn, each with the reward of its own step."""

    def experiences(self, episode: Episode, position: int) -> Experience | Sequence[Experience]:
        return [_step(episode, number, position, reward) for number, reward in enumerate(episode.rewards)]


class RewardPropagationWorkflow(_InEnvironment):
    """One experience a turn, all with the reward of the whole episode: the sum of those of its steps."""

    def reward(self, episode: Episode) -> float:
        return sum(episode.rewards)

    def experiences(self, episode: Episode, position: int) -> Experience | Sequence[Experience]:
        reward = self.reward(episode)
        return [_step(episode, number, position, reward) for number in range(len(episode.outcomes))]


def _step(episode: Episode, number: int, position: int, reward: float) -> Experience:
    return episode.dialogue.step(
        number,
        position,
        reward,
        {**episode.metrics, "actual_env_steps": float(len(episode.outcomes))},
        state=episode.states[number],
        step_reward=episode.rewards[number],
    )
