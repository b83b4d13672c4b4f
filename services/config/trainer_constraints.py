"""What must hold within `trainer`, and in what `trainer.trainer_config` says by veRL's names."""

from collections.abc import Callable, Iterator
from typing import Any

from services.config.algorithm_choice import part_of
from services.config.algorithm_parts import ADVANTAGES
from services.config.errors import Problem
from services.config.explain import shown
from services.config.keys import split
from services.config.tree import RunConfig

ABOVE_ZERO = ("critic.optim.lr", "critic.cliprange_value", "critic.grad_clip")
AT_LEAST_ONE = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
)
SCHEDULES = ("constant", "cosine")


def _numbers_of_verl_are_large_enough(config: RunConfig) -> Iterator[Problem]:
    for key in (*ABOVE_ZERO, *AT_LEAST_ONE):
        value = _given(config, key)
        whole = key in AT_LEAST_ONE
        if value is None or (_is_number(value, whole) and value >= (1 if whole else 0) and value != 0):
            continue
        what = "a whole number, 1 or more" if whole else "a number above 0"
        yield _problem(key, f"={shown(value)} is refused: use {what}")


def _the_schedule_of_the_critic_is_known(config: RunConfig) -> Iterator[Problem]:
    key = "critic.optim.lr_scheduler_type"
    value = _given(config, key)
    if value is not None and value not in SCHEDULES:
        yield _problem(key, f"={shown(value)} is not known: use {' or '.join(SCHEDULES)}")


def _warmup_is_given_once(config: RunConfig) -> Iterator[Problem]:
    nested, own = _given(config, "trainer.critic_warmup"), config.trainer.critic_warmup
    if nested is not None and not (_is_number(nested, True) and nested >= 0):
        yield _problem("trainer.critic_warmup", f"={shown(nested)} is refused: use a whole number, 0 or more")
    elif nested is not None and own not in (0, nested):
        yield _problem("trainer.critic_warmup", f"={nested} and trainer.critic_warmup={own}: keep one of them")


def _only_a_critic_warms_up(config: RunConfig) -> Iterator[Problem]:
    part = ADVANTAGES.get(part_of(config, "advantage_fn"))
    if part is None or "values" in part.reads or config.trainer.critic_warmup < 1:
        return
    told = f"trainer.critic_warmup={config.trainer.critic_warmup} trains a critic alone"
    message = f"{told}, and algorithm_type={config.algorithm.algorithm_type} has none: use 0, or algorithm_type=ppo"
    yield Problem("trainer.critic_warmup", message)


def _problem(key: str, message: str) -> Problem:
    whole = f"trainer.trainer_config.{key}"
    return Problem(whole, f"{whole}{message}")


def _given(config: RunConfig, key: str) -> Any:
    found: Any = config.trainer.trainer_config
    for part in split(key):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_number(value: object, whole: bool) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


TRAINER_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _numbers_of_verl_are_large_enough,
    _the_schedule_of_the_critic_is_known,
    _warmup_is_given_once,
    _only_a_critic_warms_up,
)
