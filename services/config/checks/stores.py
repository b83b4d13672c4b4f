"""What must hold of the stores that a run's experiences are written to, or read from."""

from collections.abc import Callable, Iterator

from services.config.errors import Problem
from services.config.rows import ROWS_ONLY
from services.config.tree import RunConfig
from services.store.errors import StoreError
from services.store.place import place_of
from services.store.sinks import BUFFER, PIPELINE, named, source


def _stores_are_named_well(config: RunConfig) -> Iterator[Problem]:
    for each in named(config):
        try:
            place_of(each.path)
        except StoreError as error:
            yield Problem(each.key, f"{each.key}: {error}")


def _stored_experiences_are_named(config: RunConfig) -> Iterator[Problem]:
    if config.experience_source != "store":
        return
    try:
        source(config)
    except StoreError as error:
        yield Problem(f"{BUFFER}.path", str(error))
    name = config.algorithm.algorithm_type
    if name in ROWS_ONLY:
        message = f"algorithm.algorithm_type={name} learns from rows of data, not from stored experiences: set"
        yield Problem(f"{BUFFER}.storage_type", f"{message} {BUFFER}.storage_type=file and the path of a data file")


def _what_operators_make_is_not_stored(config: RunConfig) -> Iterator[Problem]:
    pipeline = config.data_processor.experience_pipeline
    if pipeline.output is not None and pipeline.operators:
        message = (
            f"{PIPELINE}.output with operators: operators work where batches are made, and what is stored is what was "
            f"sampled: leave output out, and set {PIPELINE}.input_save_path to store that"
        )
        yield Problem(f"{PIPELINE}.output", message)


STORE_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _stores_are_named_well,
    _stored_experiences_are_named,
    _what_operators_make_is_not_stored,
)
