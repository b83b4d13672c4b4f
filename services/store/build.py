"""The one place that chooses the store of a path, and the reader of one."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from services.store.directories import assert_writable
from services.store.errors import StoreError
from services.store.messages import Answer, Row, answers
from services.store.place import Place
from services.store.port import Store


def store_at(place: Place) -> Store:
    """A store to write to; nothing is opened."""
    if place.kind == "sql":
        from services.store.sql import SqlStore

        return SqlStore(place)
    if place.kind == "jsonl":
        from services.store.jsonl import JsonLinesStore

        return JsonLinesStore(place)
    from services.store.parquet import ParquetStore

    return ParquetStore(place)


def fault(place: Place) -> str | None:
    """What keeps a store from being written, as far as can be found out at once; None where nothing does."""
    try:
        if place.kind == "sql":
            from services.store.sql import reach

            reach(place)
        else:
            assert_writable(Path(place.path))
    except StoreError as error:
        return str(error)
    return None


def stored_rows(place: Place, run: str | None = None, start: int = 1) -> Iterator[Row]:
    """The rows of a store from sequence `start` on, in the stream's order. A database may hold several runs: `run`
    chooses one.

    Raises:
        StoreError: it cannot be read, or does not say which run is meant.
    """
    if place.kind == "sql":
        from services.store.sql import rows_of

        return rows_of(place, run, start)
    if not Path(place.path).exists():
        raise StoreError(f"{place.path} is not there: set the path to a store that a run has written")
    return _after(_file_rows(place), start)


def stored_answers(place: Place, run: str, of_run: str | None = None, start: int = 1) -> Iterator[tuple[int, Answer]]:
    """The messages of a store with their sequences, as those of `run`.

    Raises:
        StoreError: it cannot be read, or its sequences do not grow.
    """
    last = 0
    for sequence, answer in answers(stored_rows(place, of_run, start), run, place.shown):
        if sequence <= last:
            raise StoreError(f"{place.shown}: sequence {sequence} comes after {last}: it is not in the stream's order")
        last = sequence
        yield sequence, answer


def _file_rows(place: Place) -> Iterator[Row]:
    if place.kind == "jsonl":
        from services.store.jsonl import jsonl_rows

        return jsonl_rows(Path(place.path))
    from services.store.parquet import parquet_rows

    return parquet_rows(Path(place.path))


def _after(rows: Iterable[Row], start: int) -> Iterator[Row]:
    return (row for row in rows if row["sequence"] >= start)
