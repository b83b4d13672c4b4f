"""Tool use in one turn: the right tools with the right arguments, after a thought. Prompt and score as in Tool-N1
(arXiv 2505.00024)."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from schemas.tasks import TaskReleased
from services.rollout.answers import Scores
from services.rollout.errors import EpisodeInvalid
from services.rollout.policy import Sampled
from services.rollout.prompts import message
from services.rollout.rewards import reward_named
from services.rollout.single_turn import SimpleWorkflow, answer_of

INSTRUCTIONS = """# Tools

<tools>
{tools}
</tools>

In each step you must:
1. Think, between <think> and </think>.
2. Then give the calls that are needed as JSON between <tool_call> and </tool_call>: <tool_call>[{{"name": <name of \
the function>, "arguments": <its arguments as a JSON object>}}, ...]</tool_call>
3. Give both in the same reply.
A whole reply, for example: <think>Bob has to be told, and then bananas have to be bought.</think> <tool_call>[\
{{"name": "email", "arguments": {{"receiver": "Bob", "content": "I buy bananas"}}}}, {{"name": "shop", \
"arguments": {{"item": "banana"}}}}]</tool_call>. Give each argument its right type.
"""
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "system": "system",
}

_CALLS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class ToolCallWorkflow(SimpleWorkflow):
    """Ask for calls of tools. The reward, and the metric `accuracy`, is 1 for the right calls and 0 for others.

    A row holds `tools` and `answer` (JSON, as text or not), `raw_system`, and the `conversations` before: a list of
    `{"from", "value"}`.
    """

    def messages(self, task: TaskReleased) -> list[dict[str, str]]:
        tools, said = _loaded(task, "tools"), task.row.get("conversations")
        if not said:
            raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r} has nothing under 'conversations'")
        lines = "\n".join(json.dumps({"type": "function", "function": tool}) for tool in tools)
        system = str(task.row.get("raw_system") or "") + INSTRUCTIONS.format(tools=lines)
        return [message("system", system), *(_message(turn) for turn in said)]

    def scored(self, task: TaskReleased, sampled: Sampled) -> Scores:
        if task.reward_fn is not None:
            return reward_named(task.reward_fn)(answer_of(task, sampled), **task.reward_fn_args)
        return {"accuracy": float(is_right(sampled.text, _loaded(task, "answer")))}


def is_right(response: str, expected: Sequence[dict[str, Any]]) -> bool:
    """Whether a response thinks once, and then makes the expected calls, in any order."""
    calls = calls_of(response)
    if calls is None or response.count("<think>") != 1 or response.count("</think>") != 1:
        return False
    if response.find("</think>") > response.find("<tool_call>"):
        return False
    return Counter(map(_key, calls)) == Counter(map(_key, expected))


def calls_of(response: str) -> list[dict[str, Any]] | None:
    """The calls in the last pair of tags; None where there is none, or they are no calls."""
    found = _CALLS.findall(response)
    try:
        calls = json.loads(found[-1]) if found else None
    except ValueError:
        return None
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list):
        return None
    is_well_formed = all(isinstance(call, dict) and {"name", "arguments"} <= call.keys() for call in calls)
    return calls if is_well_formed else None


def _key(call: dict[str, Any]) -> tuple[str, str]:
    return str(call["name"]), json.dumps(call["arguments"], sort_keys=True)


def _loaded(task: TaskReleased, key: str) -> list[dict[str, Any]]:
    value = task.row.get(key)
    try:
        loaded = json.loads(value) if isinstance(value, str) else value
        loaded = json.loads(loaded) if isinstance(loaded, str) else loaded
    except ValueError as error:
        raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r}: {key!r} is no JSON: {error}") from error
    if not isinstance(loaded, list):
        raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r} holds no list under {key!r}")
    return loaded


def _message(turn: dict[str, Any]) -> dict[str, str]:
    value = turn["value"]
    return message(ROLES.get(str(turn["from"]), "user"), value if isinstance(value, str) else json.dumps(value))
