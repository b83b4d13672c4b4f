"""Parquet as a store: a file that `trinity export` has written, or a directory of part files, each whole or not there.

A part is named by the first and the last sequence that it covers, so that the names alone say how far the store is.
"""

import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from services.account.table import parquet_schema
from services.runtime.durable import flush_entry
from services.store.directories import make_directory
from services.store.errors import StoreBusy, StoreError
from services.store.messages import Row
from services.store.place import Place

_ROWS_PER_READ = 256
_ROWS_PER_PART = 4096
_TOKENS_PER_PART = 8_000_000
_LONGEST_HELD_S = 30.0
_PART = re.compile(r"part-(\d{12})-(\d{12})\.parquet")


class ParquetStore:
    """Part files in a directory. Rows are held until they make a part, or for half a minute."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.position = 0
        self._directory = Path(place.path)
        self._rows: list[Row] = []
        self._tokens = 0
        self._taken = 0
        self._since = 0.0

    @property
    def held(self) -> int:
        return len(self._rows)

    def open(self, run: str) -> None:
        make_directory(self._directory)
        for unfinished in self._directory.glob(".part-*.writing"):
            unfinished.unlink(missing_ok=True)
        found = parts(self._directory)
        self.position = self._taken = found[-1][1] if found else 0
        self._rows, self._tokens = [], 0
        if found:
            _check_run(found[-1][2], run)

    def write(self, rows: Sequence[Row], position: int) -> None:
        self._since = self._since if self._rows else time.monotonic()
        self._rows += rows
        self._tokens += sum(len(row["tokens"]) for row in rows if row["tokens"] is not None)
        self._taken = position
        is_enough = len(self._rows) >= _ROWS_PER_PART or self._tokens >= _TOKENS_PER_PART
        if is_enough or time.monotonic() - self._since > _LONGEST_HELD_S:
            self.settle()
        elif not self._rows:
            self.position = position

    def settle(self) -> None:
        if not self._rows:
            return
        import pyarrow
        import pyarrow.parquet

        path = self._directory / f"part-{self.position + 1:012}-{self._taken:012}.parquet"
        aside = path.with_name(f".{path.name}.writing")
        schema = parquet_schema()
        try:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self._rows, schema=schema), aside)
            flush_entry(aside)
            os.replace(aside, path)
            flush_entry(self._directory)
        except OSError as error:
            raise StoreBusy(f"{self._directory}: {error.strerror or error}") from error
        self.position, self._rows, self._tokens = self._taken, [], 0

    def note_consumed(self, below: int) -> None:
        """A part is never changed."""

    def close(self) -> None:
        """Every part is closed already."""


def parts(directory: Path) -> list[tuple[int, int, Path]]:
    """The part files of a directory with the first and last sequences that they cover, in order.

    Raises:
        StoreError: two of them cover the same.
    """
    matches = [(_PART.fullmatch(path.name), path) for path in directory.glob("part-*.parquet")]
    found = sorted((int(match[1]), int(match[2]), path) for match, path in matches if match)
    for (_, end, before), (start, _, path) in itertools.pairwise(found):
        if start <= end:
            raise StoreError(f"{before.name} and {path.name} of {directory} cover the same: remove one of them")
    return found


def parquet_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all parts of a directory, in order.

    Raises:
        StoreError: it is no parquet, lacks a column, or holds values of another type.
    """
    number = 0
    for file in _files(path):
        for row in _file_rows(file, number):
            number += 1
            yield row


def _files(path: Path) -> list[Path]:
    return [part for _, _, part in parts(path)] if path.is_dir() else [path]


def _file_rows(path: Path, number: int) -> Iterator[Row]:
    import pyarrow

    file, schema = _opened(path), parquet_schema()
    for batch in file.iter_batches(batch_size=_ROWS_PER_READ, columns=schema.names):
        try:
            table = pyarrow.Table.from_batches([batch]).select(schema.names).cast(schema)
        except pyarrow.ArrowException as error:
            raise StoreError(f"{path}: rows from {number} on: {error}: export it again") from error
        columns = {name: _values(table.column(name).combine_chunks()) for name in schema.names}
        for place in range(table.num_rows):
            yield {"row": number + place, **{name: values[place] for name, values in columns.items()}}
        number += table.num_rows


def _opened(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise StoreError(f"{path} cannot be read as parquet: {_first_line(error)}") from error
    missing = [name for name in parquet_schema().names if name not in file.schema_arrow.names]
    if missing:
        raise StoreError(
            f"{path} lacks the columns {', '.join(missing)}: it was not written by this version's `trinity export`; "
            "export the run again"
        )
    return file


def _values(column: Any) -> list[Any]:
    """The values of a column; a list of numbers becomes an array without a detour over Python's numbers."""
    import pyarrow

    if not pyarrow.types.is_list(column.type):
        values: list[Any] = column.to_pylist()
        return values
    if column.values.null_count:
        return [item.as_py() for item in column]  # a null among numbers: the schema will refuse it
    numbers, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
    return [
        numbers[offsets[place] : offsets[place + 1]] if item.is_valid else None for place, item in enumerate(column)
    ]


def _check_run(part: Path, run: str) -> None:
    there = next(iter(_file_rows(part, 0)))["run"]
    if there != run:
        raise StoreError(f"{part.parent} holds experiences of run {there}: choose another path for those of {run}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
