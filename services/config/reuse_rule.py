"""From the configuration to the rule of reuse."""

import math

from services.config.reuse import ReuseRule, priority_args
from services.config.tree import RunConfig


def reuse_rule(config: RunConfig) -> ReuseRule | None:
    """The rule by which experiences are trained on more than once; None where no step has room for any."""
    buffer = config.buffer.trainer_input.experience_buffer
    asked = buffer.replay_buffer if buffer else None
    if buffer is None or asked is None or not config.may_reuse or config.fresh_batch_size >= config.usual_batch_size:
        return None
    return ReuseRule(
        train_batch_size=config.usual_batch_size,
        capacity=buffer.capacity,
        cooldown_s=asked.reuse_cooldown_time or 0.0,
        priority_fn=asked.priority_fn,
        max_staleness=most_staleness(config),
        **priority_args(asked.priority_fn, asked.priority_fn_args),
    )


def most_staleness(config: RunConfig) -> float | None:
    """Steps beyond which `sample_strategy: staleness_control` leaves an experience out; None: nothing bounds it."""
    strategy = config.algorithm.sample_strategy or config.algorithm_type.sample_strategy
    if strategy != "staleness_control":
        return None
    most = (config.algorithm.sample_strategy_args or {}).get("max_staleness")
    return float(most) if isinstance(most, int | float) and not math.isinf(most) else None
