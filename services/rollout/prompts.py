"""How a row becomes a prompt: the system prompts that workflows bring, and the layout that `task.format_args` tells.

`format_args` is a dumped `FormatConfig`.
"""

from collections.abc import Mapping
from typing import Any

from schemas.tasks import TaskReleased
from services.rollout.config import FormatConfig
from services.rollout.errors import EpisodeInvalid

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
QWEN_SYSTEM_PROMPT = "You are a helpful assistant."


def layout_of(task: TaskReleased) -> FormatConfig:
    return FormatConfig.model_validate(task.format_args)


def truth_of(task: TaskReleased) -> str:
    """What the row holds as the true answer; empty where it holds none. `a.b` is the field b of the column a."""
    key = layout_of(task).response_key
    truth: Any = task.row.get(key)
    if truth is None and "." in key:
        truth = task.row
        for part in key.split("."):
            truth = truth.get(part) if isinstance(truth, Mapping) else None
    return "" if truth is None else str(truth)


def question_of(task: TaskReleased) -> str:
    """What the row asks, as text: its prompt, or the last message of the user.

    Raises:
        EpisodeInvalid: the row asks nothing.
    """
    asked = asked_by(task, layout_of(task))
    users = [message["content"] for message in asked if message["role"] == "user"]
    return users[-1] if users else asked[-1]["content"]


def conversation(task: TaskReleased, layout: FormatConfig, system_prompt: str | None) -> list[dict[str, str]]:
    """The messages that a row becomes: the system prompt, the question or the row's own messages, the reply's begin."""
    messages = asked_by(task, layout)
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, message("system", system_prompt))
    if layout.reply_prefix:
        messages.append(message("assistant", layout.reply_prefix))
    return messages


def asked_by(task: TaskReleased, layout: FormatConfig) -> list[dict[str, str]]:
    """The row's own messages, or its prompt as one of the user.

    Raises:
        EpisodeInvalid: the row has neither.
    """
    asked = task.row.get(layout.prompt_key, task.row.get(layout.messages_key))
    if asked is None or asked == []:
        raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r} has nothing under {layout.prompt_key!r}")
    return [dict(said) for said in asked] if isinstance(asked, list) else [message("user", str(asked))]


def given_system_prompt(task: TaskReleased, layout: FormatConfig) -> str | None:
    """The system prompt of the row, or of the configuration."""
    from_row = task.row.get(layout.system_prompt_key) if layout.system_prompt_key else None
    return str(from_row) if from_row else layout.system_prompt


def as_text(messages: list[dict[str, str]], reply_prefix: str | None) -> str:
    """Contents line by line; the begin of the reply follows without a line break."""
    asked = messages[:-1] if reply_prefix else messages
    return "\n".join(said["content"] for said in asked) + (reply_prefix or "")


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
