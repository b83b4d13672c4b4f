"""How many steps a run of epochs has: what a learning-rate schedule is laid out for where nobody says it."""

from services.config.schedule import schedule_steps, who_needs_a_total
from services.config.tree import RunConfig
from services.rollout.plugins import load_own
from services.rollout.tasksets import open_taskset
from services.trainer.offline.rows import Rows


def with_schedule(config: RunConfig) -> RunConfig:
    """With `algorithm.optimizer.total_training_steps`, where a schedule needs it and only the rows tell."""
    if schedule_steps(config) is not None or not any(who_needs_a_total(config)):
        return config
    steps = _steps_of_rows(config)
    if steps is None:
        return config
    optimizer = config.algorithm.optimizer.model_copy(update={"total_training_steps": steps})
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"optimizer": optimizer})})


def _steps_of_rows(config: RunConfig) -> int | None:
    """Epochs of the rows, in steps; at least 1. None where this machine reads no rows."""
    rows = _rows(config)
    if rows is None:
        return None
    return max(1, config.buffer.total_epochs * rows * config.repeat_times // config.fresh_batch_size)


def _rows(config: RunConfig) -> int | None:
    buffer = config.buffer.trainer_input.experience_buffer
    if config.experience_source == "rows" and buffer is not None and config.row_schema is not None:
        return len(Rows("buffer.trainer_input.experience_buffer", buffer, config.row_schema))
    if config.mode != "both":
        return None
    load_own(config)
    return sum(len(open_taskset(taskset)) for taskset in config.tasksets)
