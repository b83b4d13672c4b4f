"""The task pipeline: which rows of a taskset become tasks, and in which order. Pure functions of the rows, so that
every synchronizer has the same taskset.

An operator takes all rows and gives back those that stay; what it gives back may be in another order, or changed.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from services.rollout.config import RowPipelineConfig
from services.rollout.errors import UnknownName
from services.rollout.row_operators import FIELDS

Row = dict[str, Any]
Operator = Callable[..., list[Row]]


class OperatorFailed(Exception):
    """An operator that cannot be used as it is configured; the message names it."""


def length_filter(rows: list[Row], fields: Sequence[str], least: int = 0, most: int | None = None) -> list[Row]:
    """The rows whose texts under `fields` have together so many characters."""
    lengths = [sum(len(_text(row, field)) for field in fields) for row in rows]
    return [row for row, length in zip(rows, lengths, strict=True) if least <= length and _is_within(length, most)]


def field_filter(
    rows: list[Row],
    field: str,
    one_of: Sequence[Any] | None = None,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    keep: bool = True,
) -> list[Row]:
    """The rows whose value under `field` is one of these, not below `least`, not above `most`, and has a part that
    matches the regular expression; with `keep: false`, the others."""

    def fits(value: Any) -> bool:
        is_above = least is None or value >= least
        is_listed = one_of is None or value in one_of
        return is_listed and is_above and _is_within(value, most) and re.search(pattern or "", str(value)) is not None

    return [row for row in rows if fits(_held(row, field)) == keep]


def deduplicate(rows: list[Row], fields: Sequence[str]) -> list[Row]:
    """The first of all rows that have the same under `fields`, but for capitals and spaces."""
    seen: set[str] = set()
    kept = []
    for row in rows:
        said = json.dumps([" ".join(_text(row, field).lower().split()) for field in fields])
        if said not in seen:
            seen.add(said)
            kept.append(row)
    return kept


def not_empty(rows: list[Row], fields: Sequence[str]) -> list[Row]:
    """The rows that have something under each of `fields`."""
    return [row for row in rows if all(_held(row, field) not in (None, "", [], {}) for field in fields)]


OPERATORS: dict[str, Operator] = {
    "deduplicate": deduplicate,
    "field_filter": field_filter,
    "length_filter": length_filter,
    "not_empty": not_empty,
}

F = TypeVar("F", bound=Operator)


def register_task_operator(name: str) -> Callable[[F], F]:
    """A decorator for plug-ins: adds an operator of tasks, or replaces one of the same name."""

    def add(operator: F) -> F:
        OPERATORS[name] = operator
        return operator

    return add


def piped(rows: Iterable[Row], pipeline: RowPipelineConfig) -> list[Row]:
    """What the pipeline makes of rows.

    Raises:
        OperatorFailed: an operator is not there, does not take its arguments, or fails.
    """
    left = [dict(row) for row in rows]
    for asked in pipeline.operators:
        operator = _operator(asked.name)
        arguments = dict(asked.args)
        if FIELDS in inspect.signature(operator).parameters:
            arguments.setdefault(FIELDS, pipeline.target_fields)
        try:
            left = list(operator(left, **arguments))
        except Exception as error:  # whatever an operator of the user's raises is that operator's failure
            raise OperatorFailed(f"operator {asked.name}: {type(error).__name__}: {error}") from error
    ranked = _ranked(left, pipeline.priority_weights)
    return ranked if pipeline.top_k < 0 else ranked[: pipeline.top_k]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines; the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.writing")
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    aside.replace(path)


def _ranked(rows: list[Row], weights: dict[str, float]) -> list[Row]:
    """The rows by the weighted sum of their values, each spread from 0 to 1 over all rows, the highest first."""
    if not weights or not rows:
        return rows
    total = np.zeros(len(rows))
    for field, weight in weights.items():
        values = np.asarray([_number(row, field) for row in rows])
        spread = values.max() - values.min()
        total += weight * (values - values.min()) / (spread or 1.0)
    return [rows[place] for place in np.argsort(-total, kind="stable")]


def _operator(name: str) -> Operator:
    """
    Raises:
        OperatorFailed: there is none of this name.
    """
    if name in OPERATORS:
        return OPERATORS[name]
    module, _, function = name.rpartition(".")
    if not module:
        raise OperatorFailed(str(UnknownName("operator of tasks", name, OPERATORS)))
    try:
        found: Operator = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OperatorFailed(f"operator {name} cannot be imported: {error}") from error
    return found


def _is_within(value: Any, most: float | None) -> bool:
    return most is None or bool(value <= most)


def _held(row: Row, field: str) -> Any:
    if field not in row:
        raise OperatorFailed(f"a row has no {field!r}: it has {', '.join(row)}")
    return row[field]


def _text(row: Row, field: str) -> str:
    value = _held(row, field)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _number(row: Row, field: str) -> float:
    value = _held(row, field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OperatorFailed(f"priority_weights: {field}={value!r} is not a number")
    return float(value)
