"""The workflows that come with the system: one prompt, one response, one reward.

How a row becomes a prompt is told by `task.format_args` (a dumped `FormatConfig`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.config import FormatConfig
from services.rollout.errors import EpisodeInvalid, UnknownName
from services.rollout.policy import Policy, Sampled
from services.rollout.rewards import Answer, Scores, reward_named
from services.rollout.workflow import Workflow

THINK_PROMPT = """\
A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant first \
thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process and \
answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e.,
<think> reasoning process here </think>
<answer> answer here </answer>.
"""
BOXED_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
BOXED_THINK_PROMPT = """\
You are a helpful assistant that solves MATH problems. You should first thinks about the reasoning process in mind and \
then provides the user with the answer. You should present your reasoning process using the format: <think>
 ...your reasoning process here... </think>
 first. You should always include your final answer in \\boxed{} as closed-form results."""


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
        layout = FormatConfig.model_validate(task.format_args)
        system_prompt = _system_prompt(task, layout) or self.system_prompt(task)
        messages = conversation(task, layout, system_prompt)
        if layout.prompt_type == "plaintext":
            return await policy.complete(_as_text(messages, layout.reply_prefix))
        return await policy.chat(messages, chat_template=layout.chat_template, enable_thinking=layout.enable_thinking)

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        """The named scores of a response."""
        layout = FormatConfig.model_validate(task.format_args)
        name = task.reward_fn or self.default_reward
        if name is None:
            raise EpisodeInvalid(f"workflow {task.workflow!r} needs a reward: set default_reward_fn_type")
        truth = task.row.get(layout.response_key)
        answer = Answer(sampled.text, "" if truth is None else str(truth), sampled.prompt_text, task.row)
        return reward_named(name)(answer, **self.reward_args(task))

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

    `workflow_args`: `with_think` asks for a thought first, `format_score_coef` is taken off where it is missing.
    """

    default_reward = "math_boxed_reward"

    def system_prompt(self, task: TaskReleased) -> str | None:
        return BOXED_THINK_PROMPT if task.workflow_args.get("with_think") else BOXED_PROMPT

    def reward_args(self, task: TaskReleased) -> dict[str, Any]:
        if task.reward_fn not in (None, self.default_reward):
            return task.reward_fn_args
        chosen = {key: task.workflow_args[key] for key in _THINK_ARGS if key in task.workflow_args}
        return {**chosen, **task.reward_fn_args}

    def is_masked(self, sampled: Sampled) -> bool:
        return sampled.completion.is_truncated


class ExactMatchWorkflow(SimpleWorkflow):
    """The response is to be the answer and nothing else."""

    default_reward = "exact_match_reward"


_THINK_ARGS = ("with_think", "format_score_coef")

WORKFLOWS: dict[str, Callable[[], Workflow]] = {
    "async_math_boxed_workflow": MathBoxedWorkflow,
    "async_math_workflow": MathWorkflow,
    "async_simple_workflow": SimpleWorkflow,
    "exact_match_workflow": ExactMatchWorkflow,
    "math_boxed_workflow": MathBoxedWorkflow,
    "math_workflow": MathWorkflow,
    "simple_workflow": SimpleWorkflow,
}

W = TypeVar("W", bound=Callable[[], Workflow])


def register_workflow(name: str) -> Callable[[W], W]:
    """A decorator for plug-ins: adds a workflow, or replaces one of the same name."""

    def add(workflow: W) -> W:
        WORKFLOWS[name] = workflow
        return workflow

    return add


def workflow_named(name: str) -> Workflow:
    """The workflow of that name.

    Raises:
        UnknownName: there is none.
    """
    if name not in WORKFLOWS:
        raise UnknownName("workflow", name, WORKFLOWS)
    return WORKFLOWS[name]()


def conversation(task: TaskReleased, layout: FormatConfig, system_prompt: str | None) -> list[dict[str, str]]:
    """The messages that a row becomes: the system prompt, the question or the row's own messages, the reply's begin."""
    asked = task.row.get(layout.prompt_key, task.row.get(layout.messages_key))
    if asked is None or asked == []:
        raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r} has nothing under {layout.prompt_key!r}")
    messages = [dict(message) for message in asked] if isinstance(asked, list) else [_message("user", str(asked))]
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, _message("system", system_prompt))
    if layout.reply_prefix:
        messages.append(_message("assistant", layout.reply_prefix))
    return messages


def _as_text(messages: list[dict[str, str]], reply_prefix: str | None) -> str:
    """Contents line by line; the begin of the reply follows without a line break."""
    asked = messages[:-1] if reply_prefix else messages
    return "\n".join(message["content"] for message in asked) + (reply_prefix or "")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _system_prompt(task: TaskReleased, layout: FormatConfig) -> str | None:
    from_row = task.row.get(layout.system_prompt_key) if layout.system_prompt_key else None
    return str(from_row) if from_row else layout.system_prompt
