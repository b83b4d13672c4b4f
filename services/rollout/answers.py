"""What a reward is given, what it gives back, and where in a response the answer stands."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Scores = Mapping[str, float]
"""Named scores. Their sum is the reward, and each is a metric."""

Reward = Callable[..., Scores]

_CONCLUSION = re.compile(r"answer is:?[ \t]*(?=\S)", re.IGNORECASE)
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Answer:
    """What is judged: the response to `prompt`, against `truth`, for the task made of `row`. Lengths are in tokens."""

    response: str
    truth: str
    prompt: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    response_length: int = 0
    is_truncated: bool = False


def true_answer(truth: str) -> str:
    r"""The answer within a reference: after GSM8K's `####`, or in the last \boxed{}, or all of it."""
    if "####" in truth:
        return truth.rsplit("####", 1)[1].strip().replace(",", "")
    inside = boxed(truth)
    return truth.strip() if inside is None else inside


def boxed(text: str) -> str | None:
    r"""What the last \boxed{...} or \fbox{...} holds, else the word after the last bare \boxed. None where there is
    none, or it is never closed."""
    begin = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if begin < 0:
        bare = _BARE_BOX.findall(text)
        return str(bare[-1]) if bare else None
    start = text.index("{", begin) + 1
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return None


def tagged(text: str) -> str | None:
    """What stands in the last pair of answer tags."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return str(found[-1]).strip() if found else None


def concluded(text: str) -> str | None:
    r"""What a solution in prose concludes with: the last \boxed{}, else what follows the last "answer is", else the
    last number, as in the evaluation of Qwen2.5-Math."""
    inside = boxed(text)
    if inside is not None:
        return inside
    ends = [found.end() for found in _CONCLUSION.finditer(text)]
    if ends:
        return text[ends[-1] :].splitlines()[0].strip().rstrip(".").strip("$ ")
    numbers = _NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None


def is_thought_once(text: str) -> bool:
    """Whether the thought's tags are there once each, in their order."""
    is_once = text.count("<think>") == 1 and text.count("</think>") == 1
    return is_once and text.index("<think>") < text.index("</think>")
