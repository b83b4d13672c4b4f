"""Workflows of one prompt, one response and one reward."""

import asyncio
from typing import Any

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.answers import Answer, Scores, concluded
from services.rollout.equivalence import equivalent
from services.rollout.errors import EpisodeInvalid
from services.rollout.policy import Policy, Sampled
from services.rollout.prompts import (
    BOXED_PROMPT,
    BOXED_THINK_PROMPT,
    QWEN_SYSTEM_PROMPT,
    THINK_PROMPT,
    as_text,
    conversation,
    given_system_prompt,
    layout_of,
    message,
    question_of,
    truth_of,
)
from services.rollout.rewards import reward_named, true_answer


class SimpleWorkflow:
    """Ask, and score the response by the task's reward function."""

    default_reward: str | None = None

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
        sampled = await self.asked(task, policy)
        if sampled.is_prompt_truncated:
            return sampled.experience(position, 0.0)
        scores = await asyncio.to_thread(self.scored, task, sampled)
        return sampled.experience(position, sum(scores.values()), scores, is_masked=self.is_masked(sampled))

    async def asked(self, task: TaskReleased, policy: Policy) -> Sampled:
        """The response to the task's row."""
        layout = layout_of(task)
        messages = self.messages(task)
        if layout.prompt_type == "plaintext":
            return await policy.complete(as_text(messages, layout.reply_prefix))
        return await policy.chat(messages, chat_template=layout.chat_template, enable_thinking=layout.enable_thinking)

    def messages(self, task: TaskReleased) -> list[dict[str, str]]:
        """The conversation that is to be answered."""
        layout = layout_of(task)
        return conversation(task, layout, given_system_prompt(task, layout) or self.system_prompt(task))

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        """The named scores of a response."""
        name = task.reward_fn or self.default_reward
        if name is None:
            raise EpisodeInvalid(f"workflow {task.workflow!r} needs a reward: set default_reward_fn_type")
        return reward_named(name)(answer_of(task, sampled), **self.reward_args(task))

    def system_prompt(self, task: TaskReleased) -> str | None:
        """The system prompt where the configuration gives none."""
        return None

    def reward_args(self, task: TaskReleased) -> dict[str, Any]:
        return task.reward_fn_args

    def is_masked(self, sampled: Sampled) -> bool:
        """Whether nothing is to be learned from a response."""
        return False


class MathWorkflow(SimpleWorkflow):
    """Think, then answer, each in its tags. Accuracy 0 or 1, and a tenth more or less for the format.

    The prompt follows DeepSeek-R1 (arXiv 2501.12948, table 1).
    """

    default_reward = "math_reward"

    def system_prompt(self, task: TaskReleased) -> str | None:
        return THINK_PROMPT if task.reward_fn in (None, self.default_reward) else None


class MathBoxedWorkflow(SimpleWorkflow):
    r"""Answer in \boxed{}. Of a response that was cut off nothing is learned.

    `workflow_args`: `with_think` asks for a thought first, `format_score_coef` is taken off where it is missing, and
    `use_base` lays the prompt out as plain text, for a model without a chat template.
    """

    default_reward = "math_boxed_reward"

    async def asked(self, task: TaskReleased, policy: Policy) -> Sampled:
        if not task.workflow_args.get("use_base"):
            return await super().asked(task, policy)
        layout = layout_of(task)
        system_prompt = given_system_prompt(task, layout) or self.system_prompt(task)
        system = f"System:{system_prompt}\n" if system_prompt else ""
        return await policy.complete(f"{system}User:\n{question_of(task)}\nAssistant:\n{layout.reply_prefix or ''}")

    def system_prompt(self, task: TaskReleased) -> str | None:
        return BOXED_THINK_PROMPT if task.workflow_args.get("with_think") else BOXED_PROMPT

    def reward_args(self, task: TaskReleased) -> dict[str, Any]:
        if task.reward_fn not in (None, self.default_reward):
            return task.reward_fn_args
        chosen = {key: task.workflow_args[key] for key in _THINK_ARGS if key in task.workflow_args}
        return {**chosen, **task.reward_fn_args}

    def is_masked(self, sampled: Sampled) -> bool:
        return sampled.completion.is_truncated


class MathEvalWorkflow(SimpleWorkflow):
    """Prompts, sampling and judgement as in the evaluation of Qwen2.5-Math. The accuracy is the reward.

    `workflow_args`: `temperature` (0.6) and `top_p` (0.8), which go before the taskset's `rollout_args`.
    """

    async def asked(self, task: TaskReleased, policy: Policy) -> Sampled:
        arguments = {"temperature": 0.6, "top_p": 0.8}
        chosen = {key: float(task.workflow_args.get(key, default)) for key, default in arguments.items()}
        return await super().asked(task, policy.with_sampling(**chosen))

    def messages(self, task: TaskReleased) -> list[dict[str, str]]:
        return qwen_math_messages(task)

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        if task.reward_fn is not None:
            return super().scored(task, sampled)
        return concluded_accuracy(answer_of(task, sampled))


class ExactMatchWorkflow(SimpleWorkflow):
    """The response is to be the answer and nothing else."""

    default_reward = "exact_match_reward"


_THINK_ARGS = ("with_think", "format_score_coef")


def answer_of(task: TaskReleased, sampled: Sampled) -> Answer:
    """What a reward is given of a response."""
    return Answer(
        response=sampled.text,
        truth=truth_of(task),
        prompt=sampled.prompt_text,
        row=task.row,
        response_length=len(sampled.completion.token_ids),
        is_truncated=sampled.completion.is_truncated,
    )


def qwen_math_messages(task: TaskReleased) -> list[dict[str, str]]:
    """The prompt of Qwen2.5-Math's evaluation (its `qwen-boxed` style)."""
    return [message("system", QWEN_SYSTEM_PROMPT), message("user", f"{question_of(task)}\n{BOXED_PROMPT}")]


def concluded_accuracy(answer: Answer) -> Scores:
    """Accuracy 1 where what the response concludes with is mathematically the true answer."""
    said = concluded(answer.response)
    return {"accuracy": float(said is not None and equivalent(said, true_answer(answer.truth)))}
