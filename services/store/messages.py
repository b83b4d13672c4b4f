"""From stored rows back to the messages of the stream: the inverse of `services.account.table`.

Rows of one `sequence` that follow each other are one group. Whatever is wrong with a row is a `StoreError` that names
it.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.account.table import ABANDONED, OF_EXPERIENCE, OF_GROUP, OF_TASK, SAMPLED
from services.store.errors import StoreError

Answer = GroupSampled | TaskAbandoned
"""What the experience stream holds for one task."""

Row = dict[str, Any]
"""A row of `services.account.table`, and under `row` its number in the store, for what is told of it."""


def answers(rows: Iterable[Row], run: str, where: str) -> Iterator[tuple[int, Answer]]:
    """The messages that `rows` were made of, each with its sequence, as those of `run`. `where` names the store.

    Raises:
        StoreError: a row is no experience.
    """
    for (sequence, _), group in itertools.groupby(rows, key=lambda item: (item["sequence"], item["kind"])):
        yield sequence, _answer(list(group), run, where)


def _answer(rows: list[Row], run: str, where: str) -> Answer:
    first = rows[0]
    kinds = {SAMPLED: _group, ABANDONED: _abandoned}
    if first["kind"] not in kinds:
        raise StoreError(f"{where}: row {first['row']}: kind={first['kind']!r} is neither {SAMPLED} nor {ABANDONED}")
    try:
        return kinds[first["kind"]](rows, run)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise StoreError(
            f"{where}: rows {first['row']} to {rows[-1]['row']} (sequence {first['sequence']}, task "
            f"{first['task_id']}): {field + ': ' if field else ''}{problem['msg']}"
        ) from None


def _group(rows: list[Row], run: str) -> Answer:
    first = rows[0]
    return GroupSampled(
        run=run,
        task=task_of(first),
        repeat_times=first["repeat_times"],
        explorer=first["explorer"],
        experiences=tuple(_experience(item) for item in rows),
        retry=first["retry"],
        **{name: first[name] for name in OF_GROUP},
    )


def _abandoned(rows: list[Row], run: str) -> Answer:
    first = rows[0]
    return TaskAbandoned(
        run=run,
        task=task_of(first),
        repeat_times=first["repeat_times"],
        explorer=first["explorer"],
        attempts=first["attempt"],
        error=first["error"],
        abandoned_at=first["finished_at"],
        retry=first["retry"],
    )


def task_of(item: Row) -> TaskIdentity:
    """The task of a row."""
    return TaskIdentity(**{name: item[name] for name in OF_TASK})


def _experience(item: Row) -> Experience:
    return Experience(**{name: item[name] for name in OF_EXPERIENCE}, metrics=dict(item["metrics"] or ()))
