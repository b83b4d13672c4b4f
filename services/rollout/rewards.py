"""Rewards: from a response and the true answer to named scores, whose sum is the reward.

A reward is a plain function. It runs in a thread, so it may block. `reward_fn_args` become its keyword arguments.
"""

import json
import re
from collections.abc import Callable

from services.rollout.answers import Answer, Reward, Scores, boxed, is_thought_once, tagged, true_answer
from services.rollout.arithmetic import calculated
from services.rollout.code_reward import code_reward
from services.rollout.equivalence import MAX_ANSWER_CHARACTERS, equivalent
from services.rollout.errors import UnknownName
from services.rollout.overlong import overlong_penalty

__all__ = ["REWARDS", "Answer", "Reward", "Scores", "boxed", "register_reward", "reward_named", "true_answer"]

LINES_PATTERN = r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\s*"
FORMAT_PATTERN = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*"
FORMAT_SCORE = 0.1


def accuracy_reward(answer: Answer) -> Scores:
    """Accuracy 1 where the answer is mathematically the true one: between the answer tags, boxed, or anywhere."""
    said = tagged(answer.response) or answer.response
    said = boxed(said) or said[-MAX_ANSWER_CHARACTERS:]
    return {"accuracy": float(equivalent(said, true_answer(answer.truth)))}


def format_reward(answer: Answer, pattern: str = LINES_PATTERN) -> Scores:
    """0.1 where the whole response is of the pattern, and -0.1 where it is not.

    By default that is a thought and then an answer, each tag on a line of its own.
    """
    is_kept = re.fullmatch(pattern, answer.response, re.DOTALL) is not None
    return {"format_score": FORMAT_SCORE if is_kept else -FORMAT_SCORE}


def math_reward(answer: Answer, pattern: str = FORMAT_PATTERN) -> Scores:
    """Accuracy and format together, from -0.1 to 1.1. Tags may stand anywhere in a line, after other words too."""
    return {**accuracy_reward(answer), **format_reward(answer, pattern)}


def math_boxed_reward(answer: Answer, with_think: bool = False, format_score_coef: float = FORMAT_SCORE) -> Scores:
    r"""Accuracy of the last \boxed{}; `with_think` takes `format_score_coef` off a response without one thought."""
    said = boxed(answer.response)
    is_right = said is not None and equivalent(said, true_answer(answer.truth))
    is_format_missed = with_think and not is_thought_once(answer.response)
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
    equation = tagged(answer.response.strip().split("\n")[-1])
    if equation is None:
        return {"score": 0.0}
    puzzle = json.loads(answer.truth)
    used = sorted(int(number) for number in re.findall(r"\d+", equation))
    value = calculated(equation) if used == sorted(puzzle["numbers"]) else None
    is_solved = value is not None and abs(value - puzzle["target"]) < 1e-5
    return {"score": 1.0 if is_solved else FORMAT_SCORE}


def math_dapo_reward(
    answer: Answer,
    enable_overlong_penalty: bool = False,
    penalty_factor: float | None = None,
    max_response_length: int | None = None,
    cache_length: int | None = None,
) -> Scores:
    r"""1 for the right answer, in \boxed{} or all that follows the thought, else -1, as in DAPO (arXiv 2503.14476).

    With `enable_overlong_penalty`, `format_score` is DAPO's soft penalty of long responses. Lengths are in tokens.
    """
    said = answer.response.rpartition("</think>")[2]
    said = boxed(said) or said[-MAX_ANSWER_CHARACTERS:]
    is_right = equivalent(said, true_answer(answer.truth))
    penalty = 0.0
    if enable_overlong_penalty:
        penalty = overlong_penalty(answer.response_length, penalty_factor, max_response_length, cache_length)
    return {"accuracy": 1.0 if is_right else -1.0, "format_score": penalty}


def reasoning_gym_reward(answer: Answer) -> Scores:
    """The score that reasoning-gym's own generator gives, from 0 to 1; the row names the generator."""
    import reasoning_gym

    said = tagged(answer.response) or answer.response.strip()
    score = reasoning_gym.get_score_answer_fn(answer.row["metadata"]["source_dataset"])
    return {"accuracy": float(score(said, dict(answer.row)))}


REWARDS: dict[str, Reward] = {
    "accuracy_reward": accuracy_reward,
    "code_reward": code_reward,
    "countdown_reward": countdown_reward,
    "exact_match_reward": exact_match_reward,
    "format_reward": format_reward,
    "math_boxed_reward": math_boxed_reward,
    "math_dapo_reward": math_dapo_reward,
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
