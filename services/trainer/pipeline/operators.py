"""The operators that are there: filters of a group's experiences, and changes to their rewards and masks.

Names, arguments and defaults are those of `services/config/operators.py`; a filter's rule in the ledger is its name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from schemas.experiences import Experience
from services.trainer.pipeline.outcome import Experiences, Operator, Outcome

_NOTHING: Experiences = ()
_SIXTEENTH, _SLACK = 1 / 16, 1e-3


def reward_filter(experiences: Experiences, threshold: float = 0.0) -> Outcome:
    """Keeps experiences with a reward of at least `threshold`."""
    return Outcome(tuple(each for each in experiences if each.reward >= threshold))


def reward_std_filter(experiences: Experiences, threshold: float = 0.0) -> Outcome:
    """Keeps a group whose rewards have a population standard deviation above `threshold`; none of a single answer."""
    if len(experiences) < 2:
        return Outcome(_NOTHING)
    rewards = [each.reward for each in experiences]
    deviation = float(np.std(rewards))
    metrics = {"reward_mean": fmean(rewards), "reward_std": deviation}
    return Outcome(experiences if deviation > threshold else _NOTHING, metrics)


def sample_std_filter(experiences: Experiences, threshold: float = 0.0) -> Outcome:
    """Keeps a group whose rewards have a sample standard deviation (n - 1) above `threshold`, as group advantages
    compute it: of an episode of several steps, the reward of the last one counts."""
    last = {each.position: each.reward for each in sorted(experiences, key=lambda each: each.step)}
    rewards = np.array(list(last.values()), dtype=np.float32)
    is_spread = len(rewards) > 1 and float(np.std(rewards, ddof=1)) > threshold
    return Outcome(experiences if is_spread else _NOTHING)


def zero_variance_filter(experiences: Experiences) -> Outcome:
    """Keeps a group whose rewards are not all equal."""
    return Outcome(experiences if len({each.reward for each in experiences}) > 1 else _NOTHING)


def invalid_reward_filter(experiences: Experiences) -> Outcome:
    """Keeps experiences whose reward is a finite number."""
    return Outcome(tuple(each for each in experiences if math.isfinite(each.reward)))


def dapo_dynamic_sampling(
    experiences: Experiences, metric_key: str = "accuracy", correct_threshold: float = 0.0
) -> Outcome:
    """Keeps a group of which some answers are right and some wrong (DAPO, arXiv 2503.14476, equation 11).

    An answer is right where its score `metric_key`, or its reward where it lacks that score, is above
    `correct_threshold`. Of a single answer nothing is kept.
    """
    if len(experiences) < 2:
        return Outcome(_NOTHING)
    right = sum(each.metrics.get(metric_key, each.reward) > correct_threshold for each in experiences)
    size = len(experiences)
    metrics = {
        "dropped_all_correct:sum": float(size if right == size else 0),
        "dropped_all_wrong:sum": float(size if right == 0 else 0),
    }
    return Outcome(experiences if 0 < right < size else _NOTHING, metrics)


def overlong_penalty(
    experiences: Experiences, max_response_length: int, cache_length: int, penalty_factor: float = 1.0
) -> Outcome:
    """Adds DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), times `penalty_factor`, to the reward.

    With L tokens: 0 up to max_response_length - cache_length, then linearly down to -1 at max_response_length and
    beyond. The score `overlong_penalty` tells it.
    """
    begins_at = max_response_length - cache_length

    def penalty(length: int) -> float:
        if length <= begins_at:
            return 0.0
        return -penalty_factor * min(1.0, (length - begins_at) / cache_length)

    def punished(each: Experience) -> Experience:
        less = penalty(each.response_length)
        return _with_reward(each, each.reward + less, {"overlong_penalty": less})

    return Outcome(tuple(punished(each) for each in experiences))


def mask_response_truncated(experiences: Experiences) -> Outcome:
    """Keeps all, and lets nothing be learned from a response that was cut at its maximal length: a mask of zeros."""

    def masked(each: Experience) -> Experience:
        return each.model_copy(update={"action_mask": np.zeros_like(each.action_mask)}) if each.is_truncated else each

    count = sum(each.is_truncated for each in experiences)
    return Outcome(tuple(masked(each) for each in experiences), {"masked_truncated_count:sum": float(count)})


def reward_shaping_mapper(
    experiences: Experiences, reward_shaping_configs: Sequence[Mapping[str, Any]] = ()
) -> Outcome:
    """Changes rewards by scores: each `{stats_key, op_type, weight}` in turn adds, subtracts, multiplies by or divides
    by weight times the score. An experience without the score stays as it is, and so it does where that is a division
    by zero."""

    def shaped(each: Experience) -> Experience:
        reward = each.reward
        for shaping in reward_shaping_configs:
            score = each.metrics.get(shaping["stats_key"])
            if score is not None:
                reward = _SHAPINGS[shaping.get("op_type", "ADD")](reward, shaping.get("weight", 1.0) * score)
        return each if reward == each.reward else _with_reward(each, reward, {})

    kept = tuple(shaped(each) for each in experiences)
    changes = [after.reward - before.reward for before, after in zip(experiences, kept, strict=True)]
    metrics = {
        "reward_diff/mean": fmean(changes),
        "reward_diff/max:max": max(changes),
        "reward_diff/min:min": min(changes),
    }
    return Outcome(kept, metrics if kept else {})


def pass_rate_calculator(experiences: Experiences) -> Outcome:
    """Keeps all, and tells which share of the tasks has a mean reward within certain bounds."""
    rate = fmean(each.reward for each in experiences)
    low, high = _SIXTEENTH + _SLACK, 1 - _SIXTEENTH - _SLACK
    metrics = {
        "selection/pass_rate": rate,
        "selection/valid_ratio": float(0 < rate < 1),
        "selection/strict_valid_ratio": float(low < rate < high),
        "selection/<1_ratio": float(rate < 1),
        "selection/>0_ratio": float(rate > 0),
        "selection/<15_16_ratio": float(rate < high),
        "selection/>1_16_ratio": float(rate > low),
    }
    return Outcome(experiences, metrics)


_SHAPINGS: dict[str, Callable[[float, float], float]] = {
    "ADD": lambda reward, amount: reward + amount,
    "SUB": lambda reward, amount: reward - amount,
    "MUL": lambda reward, amount: reward * amount,
    "DIV": lambda reward, amount: reward / amount if amount else reward,
}

BUILT_IN: dict[str, Operator] = {
    "reward_filter": reward_filter,
    "reward_std_filter": reward_std_filter,
    "zero_variance_filter": zero_variance_filter,
    "invalid_reward_filter": invalid_reward_filter,
    "dapo_dynamic_sampling": dapo_dynamic_sampling,
    "overlong_penalty": overlong_penalty,
    "mask_response_truncated": mask_response_truncated,
    "reward_shaping_mapper": reward_shaping_mapper,
    "pass_rate_calculator": pass_rate_calculator,
}


def _with_reward(each: Experience, reward: float, scores: Mapping[str, float]) -> Experience:
    return each.model_copy(update={"reward": reward, "metrics": {**each.metrics, **scores}})
