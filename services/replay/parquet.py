"""From an exported file back to the messages of the stream: the inverse of `services.account.table`.

Rows of one `sequence` that follow each other are one group. Whatever is wrong with a file is a `ReplayError` that
names the row.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.account.table import ABANDONED, SAMPLED, parquet_schema
from services.replay.carrying import Answer
from services.replay.errors import ReplayError

_ROWS_PER_READ = 256


def answers(path: Path, run: str) -> Iterator[Answer]:
    """The messages of an exported file, in its order, as those of `run`.

    Raises:
        ReplayError: the file is no parquet, lacks a column, or holds a row that is no experience.
    """
    for _, group in itertools.groupby(_rows(path), key=lambda item: (item["sequence"], item["kind"])):
        yield _answer(list(group), run, path)


def number_of_rows(path: Path) -> int:
    """How many rows the file has.

    Raises:
        ReplayError: it is no file of ours.
    """
    return int(_opened(path).metadata.num_rows)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow

    file, schema = _opened(path), parquet_schema()
    number = 0
    for batch in file.iter_batches(batch_size=_ROWS_PER_READ, columns=schema.names):
        try:
            table = pyarrow.Table.from_batches([batch]).select(schema.names).cast(schema)
        except pyarrow.ArrowException as error:
            raise ReplayError(f"{path}: rows from {number} on: {error}: export it again") from error
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
        raise ReplayError(f"{path} cannot be read as parquet: {_first_line(error)}") from error
    missing = [name for name in parquet_schema().names if name not in file.schema_arrow.names]
    if missing:
        raise ReplayError(
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


def _answer(rows: list[dict[str, Any]], run: str, path: Path) -> Answer:
    first = rows[0]
    kinds = {SAMPLED: _group, ABANDONED: _abandoned}
    if first["kind"] not in kinds:
        raise ReplayError(f"{path}: row {first['row']}: kind={first['kind']!r} is neither {SAMPLED} nor {ABANDONED}")
    try:
        return kinds[first["kind"]](rows, run)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ReplayError(
            f"{path}: rows {first['row']} to {rows[-1]['row']} (sequence {first['sequence']}, task "
            f"{first['task_id']}): {where + ': ' if where else ''}{problem['msg']}"
        ) from None


def _group(rows: list[dict[str, Any]], run: str) -> Answer:
    first = rows[0]
    return GroupSampled(
        run=run,
        task=_task(first),
        repeat_times=first["repeat_times"],
        explorer=first["explorer"],
        incarnation=first["incarnation"],
        experiences=tuple(_experience(item) for item in rows),
        attempt=first["attempt"],
        started_at=first["started_at"],
        finished_at=first["finished_at"],
        tokenizer=first["tokenizer"],
        retry=first["retry"],
    )


def _abandoned(rows: list[dict[str, Any]], run: str) -> Answer:
    first = rows[0]
    return TaskAbandoned(
        run=run,
        task=_task(first),
        repeat_times=first["repeat_times"],
        explorer=first["explorer"],
        attempts=first["attempt"],
        error=first["error"],
        abandoned_at=first["finished_at"],
        retry=first["retry"],
    )


def _task(item: dict[str, Any]) -> TaskIdentity:
    return TaskIdentity(**{name: item[name] for name in ("ordinal", "batch", "taskset", "epoch", "index")})


_OF_EXPERIENCE = (
    "position",
    "step",
    "tokens",
    "prompt_length",
    "action_mask",
    "logprobs",
    "token_versions",
    "temperature",
    "reward",
    "is_truncated",
    "prompt_text",
    "response_text",
    "teacher_logprobs",
    "state",
    "step_reward",
)


def _experience(item: dict[str, Any]) -> Experience:
    return Experience(**{name: item[name] for name in _OF_EXPERIENCE}, metrics=dict(item["metrics"] or ()))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
