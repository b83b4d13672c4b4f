"""A stream that leaves as parquet and comes back trains the same: nothing of it is lost, moved or doubled."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from bus.subjects import Stream
from schemas.experiences import GroupSampled, TaskAbandoned
from services.account.table import write_parquet
from services.replay.carrying import Answer, Distinct, carry, check_room
from services.replay.errors import ReplayError
from services.store.build import stored_answers
from services.store.errors import StoreError
from services.store.place import place_of

OF_THE_PLACE = {"sequence", "stored_at", "run"}


async def _each(given: Iterable[Answer]) -> AsyncIterator[Answer]:
    for answer in given:
        yield answer


def answers(path: Path, run: str) -> Iterable[Answer]:
    return (answer for _, answer in stored_answers(place_of(str(path)), run))


def _silent(number: int) -> None:
    return None


def _as_of(run: str, answer: Answer) -> Answer:
    return answer.model_copy(update={"run": run})


async def _held(bus: Any) -> list[Answer]:
    return [delivery.message async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]


async def test_every_field_of_every_answer_survives_the_way_through_parquet(join, group, abandoned, tmp_path) -> None:
    stream = [group(0), abandoned(1), group(2, size=1), group(3), abandoned(4, retry=1)]
    past, new = await join("tests/past"), await join("tests/new")
    for answer in stream:
        await past.publish(answer)
    assert await write_parquet(past, tmp_path / "past.parquet") == 7
    carried = await carry(new, _each(answers(tmp_path / "past.parquet", "tests/new")), set(), _silent)
    assert (carried.groups, carried.experiences, carried.abandoned, carried.already) == (3, 7, 2, 0)
    assert await _held(new) == [_as_of("tests/new", answer) for answer in stream]

    await write_parquet(new, tmp_path / "new.parquet")
    before = pyarrow.parquet.read_table(tmp_path / "past.parquet")
    after = pyarrow.parquet.read_table(tmp_path / "new.parquet")
    for name in set(before.column_names) - OF_THE_PLACE:
        assert after.column(name).equals(before.column(name)), name


async def test_an_import_that_was_cut_off_goes_on_without_doubling(join, group, abandoned, tmp_path) -> None:
    past, new = await join("tests/past"), await join("tests/new")
    stream = [group(0), abandoned(1), group(2), group(3)]
    for answer in stream:
        await past.publish(answer)
    await write_parquet(past, tmp_path / "past.parquet")
    for answer in stream[:2]:
        await new.publish(_as_of("tests/new", answer))
    with pytest.raises(ReplayError, match="--append"):
        await check_room(new, append=False)
    already = await check_room(new, append=True)
    carried = await carry(new, _each(answers(tmp_path / "past.parquet", "tests/new")), already, _silent)
    assert (carried.groups, carried.already) == (2, 2)
    assert await _held(new) == [_as_of("tests/new", answer) for answer in stream]


async def test_a_late_answer_to_an_abandoned_task_is_carried_though_its_id_is_the_same(join, group, abandoned) -> None:
    new = await join("tests/new")
    stream = [abandoned(0, run="tests/new"), group(0, run="tests/new")]
    await carry(new, _each(stream), set(), _silent)
    held = await _held(new)
    assert [type(answer) for answer in held] == [TaskAbandoned, GroupSampled]
    assert [answer.retry for answer in held] == [0, 1]


def test_the_same_answers_always_get_the_same_ids(group, abandoned) -> None:
    stream = [abandoned(0), group(0), group(0, retry=1), group(1)]
    twice = [[distinct.of(answer).retry for answer in stream] for distinct in (Distinct(), Distinct())]
    assert twice == [[0, 1, 2, 0]] * 2


async def test_a_part_of_a_stream_is_exported_by_its_sequences(join, group, tmp_path) -> None:
    past = await join("tests/past")
    for ordinal in range(5):
        await past.publish(group(ordinal))
    await write_parquet(past, tmp_path / "part.parquet", start=2, end=3)
    assert [answer.task.ordinal for answer in answers(tmp_path / "part.parquet", "tests/new")] == [1, 2]


async def test_an_empty_stream_makes_an_empty_file(join, tmp_path) -> None:
    assert await write_parquet(await join("tests/past"), tmp_path / "empty.parquet") == 0
    assert [*answers(tmp_path / "empty.parquet", "tests/new")] == []


def test_what_is_no_parquet_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not at all")
    with pytest.raises(StoreError, match=r"x\.parquet cannot be read as parquet"):
        [*answers(tmp_path / "x.parquet", "tests/new")]
    with pytest.raises(StoreError, match="is not there"):
        [*answers(tmp_path / "absent.parquet", "tests/new")]


@pytest.fixture
async def exported(join, group, tmp_path) -> Any:
    past = await join("tests/past")
    await past.publish(group(0))
    await write_parquet(past, tmp_path / "past.parquet")
    return pyarrow.parquet.read_table(tmp_path / "past.parquet")


def _written(table: Any, tmp_path: Path) -> Path:
    pyarrow.parquet.write_table(table, tmp_path / "bad.parquet")
    return tmp_path / "bad.parquet"


def _with(table: Any, name: str, values: list[Any], kind: Any = None) -> Any:
    place = table.column_names.index(name)
    return table.set_column(place, name, pyarrow.array(values, kind or table.schema.field(name).type))


def test_a_column_that_is_missing_is_named(exported, tmp_path) -> None:
    path = _written(exported.drop_columns(["retry", "logprobs"]), tmp_path)
    with pytest.raises(StoreError, match="lacks the columns retry, logprobs"):
        [*answers(path, "tests/new")]


def test_a_row_of_wrong_lengths_is_named_with_its_task(exported, tmp_path) -> None:
    path = _written(_with(exported, "logprobs", [[-1.0]] * 3), tmp_path)
    with pytest.raises(StoreError, match=r"rows 0 to 2 \(sequence 1, task sums/1/0\).*logprobs has 1 elements"):
        [*answers(path, "tests/new")]


def test_a_null_where_a_value_is_needed_is_refused(exported, tmp_path) -> None:
    path = _written(_with(exported, "reward", [0.0, None, 0.0]), tmp_path)
    with pytest.raises(StoreError, match="reward"):
        [*answers(path, "tests/new")]


def test_a_column_of_another_type_is_refused(exported, tmp_path) -> None:
    path = _written(_with(exported, "reward", ["much"] * 3, pyarrow.string()), tmp_path)
    with pytest.raises(StoreError, match="rows from 0 on"):
        [*answers(path, "tests/new")]


def test_an_unknown_kind_is_refused(exported, tmp_path) -> None:
    path = _written(_with(exported, "kind", ["guessed"] * 3), tmp_path)
    with pytest.raises(StoreError, match="row 0: kind='guessed'"):
        [*answers(path, "tests/new")]
