"""Every kind of store holds each experience once, whatever dies when, and gives back exactly what it was given."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from services.store.build import fault, store_at, stored_answers, stored_rows
from services.store.errors import StoreBusy, StoreError
from services.store.place import Place, place_of
from services.store.port import Store
from services.store.sql_schema import Base

RUN, OTHER = "tests/stored", "tests/other"
KINDS = ("sql", "jsonl", "parquet", "postgresql")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty store of each kind."""
    paths = {
        "sql": f"sqlite:///{tmp_path}/deep/er/run.db",
        "jsonl": str(tmp_path / "deep" / "er" / "run.jsonl"),
        "parquet": str(tmp_path / "deep" / "run.parquet"),
    }
    place = place_of(paths.get(request.param) or request.getfixturevalue("postgresql"))
    yield place
    if request.param == "postgresql":
        engine = create_engine(place.path)
        Base.metadata.drop_all(engine)
        engine.dispose()


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    stores: list[Store] = []

    def begin(place: Place, run: str = RUN) -> Store:
        store = store_at(place)
        stores.append(store)
        store.open(run)
        return store

    yield begin
    for store in stores:
        store.close()


@pytest.fixture
def stream(group, abandoned):
    """Sequences have gaps where a message could not be read."""
    return [(1, group(0)), (2, abandoned(1)), (4, group(2, size=1)), (7, group(3)), (8, abandoned(4))]


def held(place: Place) -> list[tuple[int, object]]:
    return list(stored_answers(place, RUN))


def test_what_is_stored_comes_back_bit_by_bit_with_its_sequences(place, opened, stream, rows) -> None:
    store = opened(place)
    assert store.position == 0
    store.write(rows(stream[:2]), 3)
    store.write(rows(stream[2:]), 8)
    store.settle()
    assert (store.position, store.held) == (8, 0)
    assert held(place) == stream
    assert [sequence for sequence, _ in stored_answers(place, RUN, start=4)] == [4, 7, 8]
    assert [message.run for _, message in stored_answers(place, OTHER, of_run=RUN)] == [OTHER] * 5
    assert next(stored_rows(place))["stored_at"] == 1_700_000_001.0


def test_a_writer_that_dies_between_writes_goes_on_where_its_store_ends(place, opened, stream, rows) -> None:
    first = opened(place)
    first.write(rows(stream[:2]), 2)
    first.settle()
    second = opened(place)
    assert second.position == 2
    second.write(rows(stream[2:]), 8)
    second.settle()
    assert held(place) == stream


def test_a_store_of_another_run_is_refused_or_kept_apart(place, opened, stream, rows, group) -> None:
    store = opened(place)
    store.write(rows(stream), 8)
    store.settle()
    if place.kind != "sql":
        with pytest.raises(StoreError, match=rf"holds experiences of run {RUN}: choose another path"):
            opened(place, OTHER)
        return
    other = opened(place, OTHER)
    assert other.position == 0
    other.write(rows([(1, group(0, run=OTHER))]), 1)
    assert [sequence for sequence, _ in stored_answers(place, RUN, of_run=OTHER)] == [1]
    with pytest.raises(StoreError, match=f"several runs and none is named: it holds {OTHER}, {RUN}"):
        stored_rows(place)
    with pytest.raises(StoreError, match="none of run tests/none: it holds"):
        stored_rows(place, "tests/none")


def test_a_store_that_is_not_there_is_told(place) -> None:
    if place.kind == "sql":
        with pytest.raises(StoreError, match=r"is not there|no experiences"):
            stored_rows(place)
    else:
        with pytest.raises(StoreError, match="is not there: set the path to a store that a run has written"):
            stored_rows(place)


def test_rows_that_a_part_does_not_hold_yet_do_not_count_as_stored(tmp_path, opened, stream, rows) -> None:
    place = place_of(str(tmp_path / "run.parquet"))
    store = opened(place)
    store.write(rows(stream[:2]), 3)
    assert (store.position, store.held) == (0, 5)
    assert opened(place).position == 0
    store.settle()
    assert opened(place).position == 3
    assert [path.name for path in (tmp_path / "run.parquet").iterdir()] == ["part-000000000001-000000000003.parquet"]


@pytest.mark.parametrize("torn", range(1, 300, 23))
def test_a_file_of_lines_that_was_torn_anywhere_goes_on_after_its_last_whole_message(
    torn, tmp_path, opened, stream, rows
) -> None:
    place = place_of(str(tmp_path / "run.jsonl"))
    store = opened(place)
    for sequence, answer in stream:
        store.write(rows([(sequence, answer)]), sequence)
    size = os.path.getsize(place.path)
    os.truncate(place.path, max(0, size - torn * 40))
    again = opened(place)
    assert again.position in {0, 1, 2, 4, 7}
    for sequence, answer in stream:
        if sequence > again.position:
            again.write(rows([(sequence, answer)]), sequence)
    assert held(place) == stream


def test_two_writers_of_one_run_do_not_store_anything_twice(tmp_path, opened, stream, rows) -> None:
    place = place_of(f"sqlite:///{tmp_path}/run.db")
    one, two = opened(place), opened(place)
    one.write(rows(stream[:2]), 2)
    with pytest.raises(StoreError, match="another process writes the experiences of tests/stored too"):
        two.write(rows(stream[:2]), 2)
    assert held(place) == stream[:2]


def test_a_database_that_is_locked_stores_nothing_and_takes_the_same_write_later(
    tmp_path, opened, stream, rows, monkeypatch
) -> None:
    monkeypatch.setattr("services.store.sql._BUSY_S", 0.05)
    place = place_of(f"sqlite:///{tmp_path}/run.db")
    store = opened(place)
    blocker = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="database is locked"):
        store.write(rows(stream), 8)
    assert fault(place) is None
    blocker.execute("ROLLBACK")
    blocker.close()
    assert store.position == 0
    store.write(rows(stream), 8)
    assert held(place) == stream


def test_consumed_says_what_the_weights_hold_and_is_taken_back_with_them(tmp_path, opened, stream, rows) -> None:
    place = place_of(f"sqlite:///{tmp_path}/run.db")
    store = opened(place)
    store.write(rows(stream), 8)
    counts = []
    for below in (5, 9, 2):
        store.note_consumed(below)
        with sqlite3.connect(tmp_path / "run.db") as connection:
            counts.append(connection.execute("select sum(consumed), count(*) from experience").fetchone())
        connection.close()
    assert counts == [(6, 10), (10, 10), (4, 10)]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mysql://host/db", r"mysql:// is no database that experiences can be stored in: write sqlite:///FILE\.db"),
        ("sqlite://", "names no file: write sqlite:///FILE.db"),
        ("experiences.csv", "names no store: write sqlite"),
        ("buffer", "names no store"),
    ],
)
def test_a_path_that_names_no_store_is_answered_with_the_forms_that_do(path, words) -> None:
    with pytest.raises(StoreError, match=words):
        place_of(path)


def test_a_password_is_not_shown() -> None:
    place = place_of("postgresql://user:secret@host:5432/db")
    assert (place.path, place.shown) == (
        "postgresql+psycopg://user:secret@host:5432/db",
        "postgresql+psycopg://user@host:5432/db",
    )


def test_what_cannot_be_written_is_told_before_anything_starts(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is no directory" in str(fault(place_of(str(tmp_path / "file" / "run.jsonl"))))
    assert "is no directory" in str(fault(place_of(f"sqlite:///{tmp_path}/file/run.db")))
    (tmp_path / "bad.db").write_text("not a database, and long enough to be read as a header of one" * 10)
    assert "file is not a database" in str(fault(place_of(f"sqlite:///{tmp_path}/bad.db")))
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table experience (id integer primary key, blob blob)")
    connection.close()
    assert "its table experience lacks timestamp, stored_at" in str(fault(place_of(f"sqlite:///{tmp_path}/other.db")))
    assert fault(place_of(f"sqlite:///{tmp_path}/new/run.db")) is None
    assert not (tmp_path / "new").exists()


def test_a_file_of_something_else_is_not_appended_to(tmp_path, opened) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1"}\n')
    with pytest.raises(StoreError, match="holds something other than stored experiences"):
        opened(place_of(str(tmp_path / "rows.jsonl")))
