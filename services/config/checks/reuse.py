"""What must hold where experiences are trained on more than once, and what is told where none can be."""

import math
from collections.abc import Callable, Iterator

from services.config.errors import Problem
from services.config.reuse import PRIORITY_ARGS
from services.config.reuse_rule import most_staleness, reuse_rule
from services.config.spelling import nearest
from services.config.tree import RunConfig
from services.rollout.config import ExperienceBufferConfig, ReplayBufferConfig

BUFFER = "buffer.trainer_input.experience_buffer"
KEY = f"{BUFFER}.replay_buffer"
_BYTES_OF_A_TOKEN = 8
"""Its id, and about as much text."""
_BYTES_OF_A_SAMPLED_TOKEN = 9
"""Its log-prob, its version and its mask."""


def _asked(config: RunConfig) -> tuple[ExperienceBufferConfig, ReplayBufferConfig] | None:
    buffer = config.buffer.trainer_input.experience_buffer
    asked = buffer.replay_buffer if buffer else None
    return (buffer, asked) if buffer is not None and asked is not None and asked.enable else None


def _rows_come_again_by_epochs(config: RunConfig) -> Iterator[Problem]:
    if _asked(config) and config.experience_source == "rows":
        message = f"{KEY}.enable=true, and {BUFFER}.path holds rows of data, which come again by buffer.total_epochs"
        yield Problem(f"{KEY}.enable", f"{message}: leave it out")


def _priorities_are_known(config: RunConfig) -> Iterator[Problem]:
    found = _asked(config)
    if found is None:
        return
    _, asked = found
    name, key = asked.priority_fn, f"{KEY}.priority_fn"
    if name not in PRIORITY_ARGS:
        meant = nearest(name, PRIORITY_ARGS) or " or ".join(PRIORITY_ARGS)
        yield Problem(key, f"{key}={name} is not there: use {meant}")
        return
    for argument, value in asked.priority_fn_args.items():
        if argument not in PRIORITY_ARGS[name]:
            takes = ", ".join(PRIORITY_ARGS[name])
            yield Problem(f"{key}_args", f"{key}_args.{argument} is no argument of {name}: it takes {takes}")
        elif not _is_number(value) or value < 0 or (argument == "use_count_limit" and value != int(value)):
            what = "a whole number, 0 for no limit" if argument == "use_count_limit" else "a number of 0 or more"
            yield Problem(f"{key}_args", f"{key}_args.{argument}={value}: use {what}")


def _times_and_sizes_are_possible(config: RunConfig) -> Iterator[Problem]:
    found = _asked(config)
    if found is None:
        return
    buffer, asked = found
    cooldown = asked.reuse_cooldown_time
    if cooldown is not None and not (_is_number(cooldown) and cooldown >= 0):
        message = (
            f"{KEY}.reuse_cooldown_time={cooldown} is no time: use 0 or more seconds, or leave it out for no reuse"
        )
        yield Problem(f"{KEY}.reuse_cooldown_time", message)
    wanted = config.usual_batch_size - config.fresh_batch_size
    if config.may_reuse and buffer.capacity < max(1, wanted):
        yield Problem(
            f"{BUFFER}.capacity",
            f"{BUFFER}.capacity={buffer.capacity} holds fewer experiences than the {wanted} that a step uses again "
            f"(train_batch_size {config.train_batch_size}, of which {config.fresh_batch_size} are fresh): use {wanted} "
            "or more",
        )


def _steps_can_be_full(config: RunConfig) -> Iterator[Problem]:
    """Each experience has only so many uses, and so many of them are fresh in a step."""
    fresh, whole = config.fresh_batch_size, config.usual_batch_size
    if not config.may_reuse or fresh >= whole or [*_priorities_are_known(config)]:
        return
    rule, pace = reuse_rule(config), config.synchronizer
    most, by = math.inf, ""
    if rule is not None and rule.use_count_limit:
        most, by = rule.use_count_limit, f"{KEY}.priority_fn_args.use_count_limit={rule.use_count_limit}"
    staleness, lag = most_staleness(config), pace.sync_offset if pace.sync_style == "fixed" else 0
    if staleness is not None and staleness - lag + 1 < most:
        most = max(1, math.floor(staleness - lag + 1))
        by = f"algorithm.sample_strategy_args.max_staleness={staleness:g}"
        by += f" at sync_offset={lag}" if lag else ""
    if most * fresh < whole:
        yield Problem(
            "buffer.train_batch_size",
            f"buffer.train_batch_size={config.train_batch_size} is never reached: {by} gives each experience {most} "
            f"uses, and {fresh} a step are fresh (batch_size * repeat_times): use at most {most * fresh:g}, or give "
            "more uses",
        )


def nothing_is_reused(config: RunConfig) -> Iterator[str]:
    """A sentence where the replay buffer is enabled and no experience is trained on twice."""
    found = _asked(config)
    has_room = config.may_reuse and config.fresh_batch_size < config.usual_batch_size
    if found is None or config.experience_source == "rows" or has_room:
        return
    if found[1].reuse_cooldown_time is None:
        yield (
            f"{KEY}.enable=true has no effect without reuse_cooldown_time: each experience is trained on once, in the "
            "order of the stream; 0 lets it be used again in the next step"
        )
    else:
        yield (
            f"{KEY}.enable=true has no effect: fresh experiences fill each step; set buffer.train_batch_size above "
            f"batch_size * repeat_times ({config.batch_size} * {config.repeat_times})"
        )


def the_pool_fits_the_stream(config: RunConfig) -> Iterator[str]:
    """A sentence where what may be used again could fill the experience stream, in which it stays."""
    buffer, most = config.buffer.trainer_input.experience_buffer, config.bus.max_experience_bytes
    if buffer is None or not config.may_reuse or config.fresh_batch_size >= config.usual_batch_size:
        return
    of_one = _BYTES_OF_A_TOKEN * config.max_model_len + _BYTES_OF_A_SAMPLED_TOKEN * config.max_response_tokens
    if buffer.capacity * of_one > most:
        yield (
            f"{BUFFER}.capacity={buffer.capacity} experiences of up to {of_one} bytes each stay in the experience "
            f"stream, and bus.max_experience_bytes={most} may not hold them: the run would wait, and say so"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


REUSE_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _rows_come_again_by_epochs,
    _priorities_are_known,
    _times_and_sizes_are_possible,
    _steps_can_be_full,
)
