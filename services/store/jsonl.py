"""JSON lines as a store: one line an experience, appended; what a dying writer left unfinished is cut off.

Every line says in `of` how many lines its message has, so that the end of the file alone says how far the store is.
"""

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.account.table import parquet_schema, row_columns
from services.runtime.durable import flush_entry
from services.store.directories import make_directory
from services.store.errors import StoreBusy, StoreError
from services.store.messages import Row
from services.store.place import Place


class JsonLinesStore:
    """A file that only grows."""

    held = 0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.position = 0
        self._path = Path(place.path)
        self._size_bytes = 0

    def open(self, run: str) -> None:
        make_directory(self._path.parent)
        try:
            with self._path.open("ab"):
                pass
            self._size_bytes, self.position = _whole(self._path, run)
            os.truncate(self._path, self._size_bytes)
            flush_entry(self._path)
            flush_entry(self._path.parent)
        except OSError as error:
            raise _busy(self._path, error) from error

    def write(self, rows: Sequence[Row], position: int) -> None:
        payload = "".join(_lines(rows)).encode("utf-8")
        try:
            with self._path.open("r+b") as file:
                file.truncate(self._size_bytes)  # what a write that failed has left
                file.seek(self._size_bytes)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _busy(self._path, error) from error
        self._size_bytes += len(payload)
        self.position = position

    def settle(self) -> None:
        """Everything is stored already."""

    def note_consumed(self, below: int) -> None:
        """A line is never changed."""

    def close(self) -> None:
        """The file is open only while it is written."""


def jsonl_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, in order. A last line without its end is left out.

    Raises:
        StoreError: a line is no row of ours.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if line.endswith(b"\n"):
                    yield {"row": number, **_row(_parsed(line, path, number), path, number)}
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    sizes: dict[int, int] = {}
    for row in rows:
        sizes[row["sequence"]] = sizes.get(row["sequence"], 0) + 1
    for row in rows:
        plain = {name: _plain(name, row[name]) for name in row_columns()}
        yield json.dumps(plain | {"of": sizes[row["sequence"]]}, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return dict(value) if name == "metrics" and value is not None else value


def _row(line: dict[str, Any], path: Path, number: int) -> Row:
    missing = [name for name in row_columns() if name not in line]
    if missing:
        raise StoreError(f"{path}: line {number + 1} lacks {', '.join(missing)}: it is no stored experience")
    row = {name: line[name] for name in row_columns()}
    row["metrics"] = None if row["metrics"] is None else sorted(row["metrics"].items())
    try:
        return row | {name: np.asarray(row[name], kind) for name, kind in _arrays().items() if row[name] is not None}
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{path}: line {number + 1}: {error}") from error


def _arrays() -> dict[str, str]:
    """The columns that are lists of numbers, with their dtypes."""
    import pyarrow

    fields = [field for field in parquet_schema() if pyarrow.types.is_list(field.type)]
    return {field.name: str(field.type.value_type.to_pandas_dtype().__name__) for field in fields}


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise StoreError(f"{path}: line {number + 1} is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise StoreError(f"{path}: line {number + 1} is no JSON object")
    return parsed


def _whole(path: Path, run: str) -> tuple[int, int]:
    """The size in bytes up to the end of the last message that is there whole, and that message's sequence."""
    if path.stat().st_size == 0:
        return 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
        end = lines.rfind(b"\n") + 1
        while end > 0:
            start, last, found = end, None, 0
            while start > 0:
                before = lines.rfind(b"\n", 0, start - 1) + 1
                line = _parsed(lines[before:start], path, 0)
                _check(line, path, run)
                if last is not None and line["sequence"] != last["sequence"]:
                    break
                start, last, found = before, line, found + 1
            if last is not None and found == last["of"]:
                return end, int(last["sequence"])
            end = start
    return 0, 0


def _check(line: dict[str, Any], path: Path, run: str) -> None:
    if "of" not in line or "sequence" not in line:
        raise StoreError(f"{path} holds something other than stored experiences: choose another path")
    if line.get("run") != run:
        raise StoreError(f"{path} holds experiences of run {line.get('run')}: choose another path for those of {run}")


def _busy(path: Path, error: OSError) -> StoreBusy:
    return StoreBusy(f"{path}: {error.strerror or error}")
