"""Rewards: from a response and the true answer to named scores, whose sum is the reward.

A reward is a plain function. It runs in a thread, so it may block. `reward_fn_args` become its keyword arguments.
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.rollout.equivalence import MAX_ANSWER_CHARACTERS, equivalent
from services.rollout.errors import UnknownName

FORMAT_PATTERN = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*"
FORMAT_SCORE = 0.1

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What is judged: the response to `prompt`, against `truth`, for the task made of `row`."""

    response: str
    truth: str
    prompt: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)


Reward = Callable[..., Scores]


def accuracy_reward(answer: Answer) -> Scores:
    """Accuracy 1 where the answer is mathematically the true one: between the answer tags, boxed, or anywhere."""
    said = _tagged(answer.response) or answer.response
    said = boxed(said) or said[-MAX_ANSWER_CHARACTERS:]
    return {"accuracy": float(equivalent(said, true_answer(answer.truth)))}


def format_reward(answer: Answer, pattern: str = FORMAT_PATTERN) -> Scores:
    """0.1 where the whole response is a thought and then an answer, each in its tags, and -0.1 where it is not."""
    is_kept = re.fullmatch(pattern, answer.response, re.DOTALL) is not None
    return {"format_score": FORMAT_SCORE if is_kept else -FORMAT_SCORE}


def math_reward(answer: Answer, pattern: str = FORMAT_PATTERN) -> Scores:
    """Accuracy and format together, from -0.1 to 1.1."""
    return {**accuracy_reward(answer), **format_reward(answer, pattern)}


def math_boxed_reward(answer: Answer, with_think: bool = False, format_score_coef: float = FORMAT_SCORE) -> Scores:
    r"""Accuracy of the last \boxed{}; `with_think` takes `format_score_coef` off a response without one thought."""
    said = boxed(answer.response)
    is_right = said is not None and equivalent(said, true_answer(answer.truth))
    is_format_missed = with_think and not _is_thought_once(answer.response)
    return {"accuracy": float(is_right), "format_score": -format_score_coef if is_format_missed else 0.0}


def exact_match_reward(answer: Answer) -> Scores:
    """Accuracy 1 where the stripped response is the answer; else 0.5 where its last integer is."""
    response, truth = answer.response.strip(), answer.truth.strip()
    if response == truth:
        return {"accuracy": 1.0, "last_integer_score": 0.0}
    integers = re.findall(r"-?\d+", response)
    return {"accuracy": 0.0, "last_integer_score": 0.5 if integers and integers[-1] == truth else 0.0}


def countdown_reward(answer: Answer) -> Scores:
    """Score 1 for an equation of all the given numbers that gives the target, 0.1 for any equation, else 0.

    The truth is JSON: `{"target": 24, "numbers": [4, 6]}`.
    """
    equation = _tagged(answer.response.strip().split("\n")[-1])
    if equation is None:
        return {"score": 0.0}
    puzzle = json.loads(answer.truth)
    used = sorted(int(number) for number in re.findall(r"\d+", equation))
    value = _calculated(equation) if used == sorted(puzzle["numbers"]) else None
    is_solved = value is not None and abs(value - puzzle["target"]) < 1e-5
    return {"score": 1.0 if is_solved else FORMAT_SCORE}


def reasoning_gym_reward(answer: Answer) -> Scores:
    """The score that reasoning-gym's own generator gives, from 0 to 1; the row names the generator."""
    import reasoning_gym

    said = _tagged(answer.response) or answer.response.strip()
    score = reasoning_gym.get_score_answer_fn(answer.row["metadata"]["source_dataset"])
    return {"accuracy": float(score(said, dict(answer.row)))}


REWARDS: dict[str, Reward] = {
    "accuracy_reward": accuracy_reward,
    "countdown_reward": countdown_reward,
    "exact_match_reward": exact_match_reward,
    "format_reward": format_reward,
    "math_boxed_reward": math_boxed_reward,
    "math_reward": math_reward,
    "reasoning_gym_reward": reasoning_gym_reward,
}


def register_reward(name: str) -> Callable[[Reward], Reward]:
    """A decorator for plug-ins: adds a reward, or replaces one of the same name."""

    def add(reward: Reward) -> Reward:
        REWARDS[name] = reward
        return reward

    return add


def reward_named(name: str) -> Reward:
    """The reward of that name.

    Raises:
        UnknownName: there is none.
    """
    if name not in REWARDS:
        raise UnknownName("reward", name, REWARDS)
    return REWARDS[name]


def true_answer(truth: str) -> str:
    r"""The answer within a reference: after GSM8K's `####`, or in the last \boxed{}, or all of it."""
    if "####" in truth:
        return truth.rsplit("####", 1)[1].strip().replace(",", "")
    inside = boxed(truth)
    return truth.strip() if inside is None else inside


def boxed(text: str) -> str | None:
    r"""What the last \boxed{...} or \fbox{...} holds. None where there is none, or it is never closed."""
    begin = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if begin < 0:
        return None
    start = text.index("{", begin) + 1
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return None


def _tagged(text: str) -> str | None:
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return str(found[-1]).strip() if found else None


def _is_thought_once(text: str) -> bool:
    is_once = text.count("<think>") == 1 and text.count("</think>") == 1
    return is_once and text.index("<think>") < text.index("</think>")


_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def _calculated(equation: str) -> float | None:
    """The value of an expression of numbers, + - * / and parentheses; None where it is anything else."""
    try:
        return _value(ast.parse(equation.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(left), _value(right))
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(operand))
    raise ValueError(f"{ast.dump(node)[:80]} is no arithmetic")
