"""Tasksets: rows with random access, from files, the Hugging Face hub, or a reasoning-gym generator.

A row is a map of plain values, so that it fits a message whatever library read it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError, nearest
from services.rollout.sources import Rows, generated, read

_INT64 = 2**63


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
        rows, columns = generated(name, config)
    elif config.storage_type == "file":
        rows, columns = read(name, config, cache_dir)
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


def _plain(value: object) -> Any:
    """A value as maps, lists, texts and numbers.

    Raises:
        TypeError: it is something else, such as an image.
    """
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return int(value) if -_INT64 <= value < _INT64 else str(value)
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
