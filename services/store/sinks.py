"""Which stores a run's experiences are written to, and which one its trainer reads. Pure, of the configuration."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.config.tree import RunConfig
from services.rollout.config import ExperienceBufferConfig
from services.store.errors import StoreError
from services.store.place import Place, place_of

BUFFER = "buffer.trainer_input.experience_buffer"
PIPELINE = "data_processor.experience_pipeline"
OUTPUT = "buffer.explorer_output"

_DEFAULT_NAME = "experience_buffer"


@dataclass(frozen=True)
class Named:
    """A path that the configuration names for a store, and the key that names it."""

    key: str
    path: str


def named(config: RunConfig) -> list[Named]:
    """The paths of all stores that the run's experiences are to be written to, each once."""
    if config.mode not in ("both", "explore", "train") or config.experience_source != "stream":
        return []
    found: dict[str, Named] = {}
    for each in _named(config):
        found.setdefault(each.path, each)
    return list(found.values())


def sinks(config: RunConfig) -> list[Place]:
    """The stores that the run's experiences are written to.

    Raises:
        StoreError: a path names none.
    """
    return [_placed(each) for each in named(config)]


def source(config: RunConfig) -> Place:
    """The store that the trainer of `experience_source: store` reads.

    Raises:
        StoreError: its path is missing, or names none.
    """
    buffer = config.buffer.trainer_input.experience_buffer
    path = _path_of(config, buffer) if buffer is not None else None
    if path is None or buffer is None or not buffer.path:
        raise StoreError(
            f"{BUFFER}.path is missing: with mode=train and storage_type={buffer.storage_type if buffer else 'sql'} "
            "it names the stored experiences of an earlier run"
        )
    return _placed(Named(f"{BUFFER}.path", path))


def _named(config: RunConfig) -> Iterator[Named]:
    pipeline = config.data_processor.experience_pipeline
    buffers = [(BUFFER, config.buffer.trainer_input.experience_buffer), (OUTPUT, config.buffer.explorer_output)]
    if not pipeline.operators:
        buffers.append((f"{PIPELINE}.output", pipeline.output))
    for key, buffer in buffers:
        path = _path_of(config, buffer) if buffer is not None else None
        if path is not None:
            yield Named(f"{key}.path", path)
    if pipeline.save_input and pipeline.input_save_path:
        yield Named(f"{PIPELINE}.input_save_path", pipeline.input_save_path)


def _path_of(config: RunConfig, buffer: ExperienceBufferConfig) -> str | None:
    """The path as given; without one, in the run's directory, and none for a queue."""
    if buffer.path or buffer.storage_type == "queue":
        return buffer.path or None
    file = config.run_dir / "buffer" / (buffer.name or _DEFAULT_NAME)
    return f"sqlite:///{file}.db" if buffer.storage_type == "sql" else f"{file}.jsonl"


def _placed(each: Named) -> Place:
    try:
        return place_of(each.path)
    except StoreError as error:
        raise StoreError(f"{each.key}: {error}") from None
