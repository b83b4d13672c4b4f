"""What must hold of the experience pipeline, and of what else leaves experiences out."""

from collections.abc import Callable, Iterator

from services.config.errors import Problem
from services.config.operators import operator_problems
from services.config.tree import RunConfig

STALENESS = "algorithm.sample_strategy_args.max_staleness"
_REFILL = "data_processor.experience_pipeline.refill_batches"


def _refill_is_a_number_of_batches(config: RunConfig) -> Iterator[Problem]:
    batches = config.data_processor.experience_pipeline.refill_batches
    if batches < 0:
        yield Problem(_REFILL, f"{_REFILL}={batches} is too small: use 0 (nothing is made up for) or more")


def _fresh_samples_are_fresh_enough(config: RunConfig) -> Iterator[Problem]:
    """What the newest weights sample must not be too stale, or every sample is."""
    given = (config.algorithm.sample_strategy_args or {}).get("max_staleness")
    if config.algorithm.sample_strategy != "staleness_control" or not isinstance(given, int | float):
        return
    pace = config.synchronizer
    needed = pace.sync_interval - 1 + (pace.sync_offset if pace.sync_style == "fixed" else 0)
    if given < needed:
        yield Problem(
            STALENESS,
            f"{STALENESS}={given} leaves out all that is sampled just before new weights come (sync_interval="
            f"{pace.sync_interval}, sync_offset={pace.sync_offset}): use {needed} or more, or sync more often",
        )


PIPELINE_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    operator_problems,
    _refill_is_a_number_of_batches,
    _fresh_samples_are_fresh_enough,
)
