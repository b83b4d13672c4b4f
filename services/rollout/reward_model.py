"""A workflow whose reward is a reward model's score of the conversation, as with veRL's `reward_model.enable`."""

import asyncio

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.answers import Scores
from services.rollout.policy import Policy, Sampled
from services.rollout.prompts import message
from services.rollout.single_turn import SimpleWorkflow

SCORE = "reward_model_score"


class RewardModelWorkflow(SimpleWorkflow):
    """Ask the policy, then have the reward model score the conversation with the response as its last message.

    The score is the model's raw output, under its own chat template. A reward function that is named adds its scores.
    `workflow_args`: `reward_model`, the name of the auxiliary model, by default the first classifier.
    """

    needs_auxiliary_model = True

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
        sampled = await self.asked(task, policy)
        if sampled.is_prompt_truncated:
            return sampled.experience(position, 0.0)
        model = policy.reward_model(task.workflow_args.get("reward_model"))
        scores = {SCORE: await model.score(self.whole(task, sampled))}
        scores |= await asyncio.to_thread(self.scored, task, sampled)
        return sampled.experience(position, sum(scores.values()), scores)

    def whole(self, task: TaskReleased, sampled: Sampled) -> list[dict[str, str]]:
        """The conversation with the response: a reply that was begun for the policy is one message with it."""
        messages = self.messages(task)
        begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
        return [*messages, message("assistant", begun + sampled.text)]

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        return super().scored(task, sampled) if task.reward_fn else {}
