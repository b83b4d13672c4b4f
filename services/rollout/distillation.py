"""On-policy distillation: the policy answers, and a teacher says how likely each of its tokens was.

The advantage of a token is made of the difference, by the trainer (`algorithm_type: on_policy_distill`). The teacher is
an auxiliary model with the policy's vocabulary: it is given the very token ids that were sampled.
"""

import asyncio

import numpy as np

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.answers import Scores
from services.rollout.policy import Policy, Sampled
from services.rollout.single_turn import SimpleWorkflow, answer_of, concluded_accuracy, qwen_math_messages


class OnPolicyDistillWorkflow(SimpleWorkflow):
    """Ask the policy, then the teacher. The reward is 0, or that of the task's reward function where one is named.

    `workflow_args`: `teacher`, the name of the auxiliary model, by default the first.
    """

    needs_auxiliary_model = True

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
        sampled = await self.asked(task, policy)
        if sampled.is_prompt_truncated:  # nothing of it is trained on, and nobody is asked
            return sampled.experience(position, 0.0, teacher_logprobs=sampled.completion.logprobs)
        teacher = policy.auxiliary_named(task.workflow_args.get("teacher"))
        completion = sampled.completion
        logprobs = await teacher.logprobs(sampled.prompt_ids, completion.token_ids.tolist())
        scores = await asyncio.to_thread(self.scored, task, sampled)
        divergence = float(np.sum(completion.logprobs.astype(np.float64) - logprobs))
        metrics = {**scores, "kl_divergence": divergence}
        return sampled.experience(position, sum(scores.values()), metrics, teacher_logprobs=logprobs)

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        return super().scored(task, sampled) if task.reward_fn else {}


class OnPolicyDistillMathWorkflow(OnPolicyDistillWorkflow):
    """The same with the prompts of Qwen2.5-Math's evaluation. The accuracy is the reward."""

    def messages(self, task: TaskReleased) -> list[dict[str, str]]:
        return qwen_math_messages(task)

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        return super().scored(task, sampled) if task.reward_fn else concluded_accuracy(answer_of(task, sampled))
