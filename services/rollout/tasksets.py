"""Tasksets: rows with random access, from files, the Hugging Face hub, or a reasoning-gym generator.

A row is a map of plain values, so that it fits a message whatever library read it.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError, nearest

FILE_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
GENERATOR_ROWS = 500

_INT64 = range(-(2**63), 2**63)


class Rows(Protocol):
    """What a library gives us to read rows from."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Taskset:
    """The rows of one configured taskset."""

    def __init__(self, name: str, config: TasksetConfig, rows: Rows, columns: Iterable[str]) -> None:
        self.name = name
        self.config = config
        self.columns = tuple(columns)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> dict[str, Any]:
        """The plain values of row `index`."""
        if not 0 <= index < len(self):
            raise IndexError(f"taskset {self.name!r} has no row {index}: it has {len(self)}")
        try:
            return {str(key): _plain(value) for key, value in dict(self._rows[index]).items()}
        except TypeError as error:
            raise TasksetError(self.name, f"row {index}: {error}") from error


def open_taskset(config: TasksetConfig, cache_dir: Path | None = None) -> Taskset:
    """Open the rows that `config` names. Local files are read into `cache_dir`, or a place that goes with the process.

    Raises:
        TasksetError: the rows are not there, not readable, none, or lack the column of the prompt.
    """
    name = config.name or Path(config.path or "taskset").stem
    if not config.path:
        raise TasksetError(name, "no path: set it to a file, a directory, a data set's name or a generator's")
    if config.storage_type == "reasoning_gym":
        rows, columns = _generated(name, config)
    elif config.storage_type == "file":
        rows, columns = _read(name, config, cache_dir)
    else:
        raise TasksetError(name, f"storage_type {config.storage_type!r} holds no tasks: use 'file' or 'reasoning_gym'")
    if len(rows) == 0:
        raise TasksetError(name, f"{config.path} has no rows")
    _check_columns(name, config, columns)
    return Taskset(name, config, rows, columns)


def _check_columns(name: str, config: TasksetConfig, columns: list[str]) -> None:
    layout = config.format
    if layout.prompt_key in columns or (layout.prompt_type == "messages" and layout.messages_key in columns):
        return
    said = f"format.prompt_key={layout.prompt_key!r} is no column ({', '.join(columns)})"
    raise TasksetError(name, f"{said}: {nearest(layout.prompt_key, columns)}")


def _generated(name: str, config: TasksetConfig) -> tuple[Rows, list[str]]:
    """Rows of a reasoning-gym generator: question, answer, metadata. `size` and `seed` are among `generator_args`."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    generator = config.path or ""
    if generator not in DATASETS:
        raise TasksetError(name, f"reasoning-gym has no generator {generator!r}: {nearest(generator, DATASETS)}")
    arguments = {"size": GENERATOR_ROWS, "seed": config.data_selector.seed, **config.generator_args}
    try:
        rows: Rows = reasoning_gym.create_dataset(generator, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise TasksetError(name, f"generator_args of {generator}: {error}") from error
    return rows, list(rows[0]) if len(rows) else []


def _read(name: str, config: TasksetConfig, cache_dir: Path | None) -> tuple[Rows, list[str]]:
    """Rows by the `datasets` library: of a file, a directory in its layout, or a data set of the hub."""
    import datasets

    source, is_local = _source(name, config)
    if cache_dir is None and is_local:
        cache_dir = Path(_scratch().name)
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(**source, cache_dir=None if cache_dir is None else str(cache_dir))
        _check_split(name, config.split, _splits(builder))
        builder.download_and_prepare()
        rows = builder.as_dataset(split=config.split)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        cause = error.__cause__ or error
        raise TasksetError(name, f"{config.path} cannot be read: {type(cause).__name__}: {_first_line(cause)}") from error
    return rows, list(rows.column_names)


def _source(name: str, config: TasksetConfig) -> tuple[dict[str, Any], bool]:
    """What to load, in the words of `datasets`, and whether it lies on this machine."""
    place = Path(config.path or "").expanduser()
    if place.is_dir():
        return {"path": str(place.resolve()), "name": config.subset_name}, True
    if place.is_file():
        if place.suffix not in FILE_READERS:
            raise TasksetError(name, f"{place} is none of {', '.join(FILE_READERS)}")
        split = _split_name(config.split)  # a single file is the split that is asked for
        return {"path": FILE_READERS[place.suffix], "data_files": {split: [str(place.resolve())]}}, True
    is_hub_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(config.path)) and place.suffix not in FILE_READERS
    if not is_hub_name:
        raise TasksetError(name, f"{place} is not there")
    return {"path": str(config.path), "name": config.subset_name}, False


def _splits(builder: Any) -> list[str]:
    """The splits of a data set before it is prepared; empty where it does not say."""
    return [str(split) for split in (builder.config.data_files or builder.info.splits or ())]


def _check_split(name: str, split: str, splits: list[str]) -> None:
    wanted = _split_name(split)
    if splits and wanted not in splits and wanted != "all":
        raise TasksetError(name, f"no split {wanted!r}: {nearest(wanted, splits)} (it has {', '.join(splits)})")


def _split_name(split: str) -> str:
    """The split's name without a slice: `train` of `train[:100]`."""
    return re.split(r"[\[+]", split, maxsplit=1)[0]


_scratches: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """The process's own cache, removed when the process ends."""
    if not _scratches:
        _scratches.append(tempfile.TemporaryDirectory(prefix="trinity-tasksets-", ignore_cleanup_errors=True))
    return _scratches[0]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


def _plain(value: object) -> Any:
    """A value as maps, lists, texts and numbers.

    Raises:
        TypeError: it is something else, such as an image.
    """
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__module__ in ("decimal", "fractions", "uuid", "sympy.core.numbers"):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is no text, number, list or map")
