"""Tasksets: rows with random access, from files, the Hugging Face hub, a SQL table, or a reasoning-gym generator, and
what the task pipeline leaves of them.

A row is a map of plain values, so that it fits a message whatever library read it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError, nearest
from services.rollout.ordering import MOST_ADAPTIVE_ROWS, Indices, easy_first
from services.rollout.selectors import ADAPTIVE, EASY_FIRST
from services.rollout.sources import Rows, generated, read
from services.rollout.task_pipeline import OperatorFailed, piped

_INT64 = 2**63


class Taskset:
    """The rows of one configured taskset."""

    def __init__(self, name: str, config: TasksetConfig, rows: Rows, columns: Iterable[str]) -> None:
        self.name = name
        self.config = config
        self.columns = tuple(columns)
        self._rows = rows
        self._easy_first: dict[tuple[str, ...], Indices] = {}

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

    def features(self, keys: Sequence[str]) -> npt.NDArray[np.float64]:
        """The numbers of every row under `keys`, `N x K`.

        Raises:
            TasksetError: no key is named, or a row holds something else there.
        """
        if not keys:
            raise TasksetError(self.name, "data_selector.feature_keys names no column that says how hard a row is")
        missing = [key for key in keys if key not in self.columns]
        if missing:
            said = f"data_selector.feature_keys: {missing[0]!r} is no column"
            raise TasksetError(self.name, f"{said}: {nearest(missing[0], self.columns)}")
        rows = (self.row(index) for index in range(len(self)))
        return np.asarray([[self._number(row[key], key, index) for key in keys] for index, row in enumerate(rows)])

    def easy_first(self, keys: tuple[str, ...]) -> Indices:
        """The rows by their numbers under `keys`, the highest first.

        Raises:
            TasksetError: a row lacks a number.
        """
        if keys not in self._easy_first:
            self._easy_first[keys] = easy_first(self.features(keys))
        return self._easy_first[keys]

    def _number(self, value: object, key: str, index: int) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TasksetError(self.name, f"row {index}: {key}={value!r} is not a number to order rows by")
        return float(value)


def open_taskset(config: TasksetConfig, cache_dir: Path | None = None) -> Taskset:
    """Open the rows that `config` names. Local files are read into `cache_dir`, or a place that goes with the process.

    Raises:
        TasksetError: the rows are not there, not readable, none, or lack the column of the prompt.
    """
    name = config.name or Path(config.path or "taskset").stem
    if not config.path:
        raise TasksetError(name, "no path: set it to a file, a directory, a data set's name or a generator's")
    taskset = _piped(_opened(name, config, cache_dir), cache_dir)
    _check_columns(name, config, taskset.columns)
    if not config.is_eval:
        _check_order(taskset)
    return taskset


def _opened(name: str, config: TasksetConfig, cache_dir: Path | None) -> Taskset:
    """The rows of the taskset's own path."""
    if config.task_pipeline is not None and config.task_pipeline.inputs:
        return Taskset(name, config, [], ())
    if config.storage_type == "reasoning_gym":
        rows, columns = generated(name, config)
    elif config.storage_type == "sql":
        from services.rollout.sql_rows import sql_rows

        rows, columns = sql_rows(name, config)
    else:
        rows, columns = read(name, config, cache_dir)
    if len(rows) == 0:
        raise TasksetError(name, f"{config.path} has no rows")
    return Taskset(name, config, rows, columns)


def _piped(taskset: Taskset, cache_dir: Path | None) -> Taskset:
    """What the taskset's pipeline makes of its rows, or of those of the pipeline's inputs."""
    pipeline, name, config = taskset.config.task_pipeline, taskset.name, taskset.config
    if pipeline is None:
        return taskset
    sources = [taskset] if not pipeline.inputs else []
    for path in pipeline.inputs:
        source = config.model_copy(update={"path": path, "storage_type": "file", "task_pipeline": None})
        sources.append(_opened(name, source, cache_dir))
    try:
        rows = piped((source.row(index) for source in sources for index in range(len(source))), pipeline)
    except OperatorFailed as error:
        raise TasksetError(name, f"task pipeline: {error}") from error
    if not rows:
        raise TasksetError(name, f"the task pipeline leaves none of its {sum(map(len, sources))} rows")
    return Taskset(name, config, rows, rows[0])


def _check_columns(name: str, config: TasksetConfig, columns: Sequence[str]) -> None:
    layout = config.format
    if layout.prompt_key in columns or (layout.prompt_type == "messages" and layout.messages_key in columns):
        return
    said = f"format.prompt_key={layout.prompt_key!r} is no column ({', '.join(columns)})"
    raise TasksetError(name, f"{said}: {nearest(layout.prompt_key, columns)}")


def _check_order(taskset: Taskset) -> None:
    """Whether the rows have what their selector needs."""
    selector = taskset.config.task_selector or taskset.config.data_selector
    if selector.selector_type in EASY_FIRST:
        taskset.easy_first(tuple(selector.feature_keys))
    elif selector.selector_type in ADAPTIVE:
        if len(selector.feature_keys) not in (0, 2):
            raise TasksetError(
                taskset.name,
                f"data_selector.feature_keys={selector.feature_keys}: difficulty_based takes two, the pass rates of a "
                "weaker and of a stronger model, or none",
            )
        if selector.feature_keys:
            taskset.features(selector.feature_keys)
        if len(taskset) > MOST_ADAPTIVE_ROWS:
            raise TasksetError(
                taskset.name,
                f"{len(taskset)} rows are more than the {MOST_ADAPTIVE_ROWS} that difficulty_based keeps account of: "
                "split it, or use another selector",
            )


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
