"""The history of a serving explorer: every conversation, its feedback, and what became of it, in a SQL database.

Invariant: what a call returned from is on disk. A message is in at most one group, and a group answers at most one
task.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from services.explorer.serving.tables import groups, histories, messages, metadata
from services.inference.engine import Completion
from services.inference.openai.calls import Call
from services.store.directories import make_directory
from services.store.errors import StoreError
from services.store.place import place_of
from services.store.sql import engine_of, file_of

_BUSY_S = 30.0
_ATTEMPTS = 5


class HistoryUnusable(RuntimeError):
    """A database that cannot hold the history; the message says what to change."""


@dataclass(frozen=True)
class Judged:
    """What a feedback did: responses that it judged, those that nobody knows, and those that were committed before."""

    updated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    committed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Committed:
    """What a commit did: the groups that it made, and the runs that are judged of each task that waits for more."""

    groups: tuple[int, ...] = ()
    messages: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One judged response."""

    call: Call
    run_id: str
    reward: float


class History:
    """The history of one run in one database. Blocking: not for the event loop.

    Raises:
        HistoryUnusable: the database is not there, or of a kind that is not known.
    """

    def __init__(self, url: str, run: str) -> None:
        self._run = run
        self._engine = _opened(url)
        self.id = self._identity()

    def close(self) -> None:
        self._engine.dispose()

    def record(self, calls: Sequence[Call]) -> None:
        """Keep what was sampled."""
        with self._writing() as connection:
            connection.execute(sa.insert(messages), [_row(self._run, call) for call in calls])

    def judge(self, msg_ids: Sequence[str], reward: float, task_id: str | None, run_id: str) -> Judged:
        """Give responses their reward, as run `run_id` of a task. Without `task_id` they are a task of their own.

        A later feedback takes the place of an earlier one, until the responses are committed.
        """
        wanted = list(dict.fromkeys(msg_ids))
        mine = sa.and_(messages.c.run == self._run, messages.c.msg_id.in_(wanted))
        said: dict[str, Any] = {
            "reward": reward,
            "task_id": task_id or f"alone-{uuid.uuid4().hex}",
            "run_id": run_id,
            "is_alone": task_id is None,
            "judged_at": time.time(),
        }
        with self._writing() as connection:
            connection.execute(sa.update(messages).where(mine, messages.c.group_id.is_(None)).values(**said))
            found = connection.execute(sa.select(messages.c.msg_id, messages.c.group_id).where(mine)).all()
        taken = {msg_id for msg_id, group in found if group is not None}
        known = {msg_id for msg_id, _ in found}
        return Judged(
            updated=tuple(each for each in wanted if each in known - taken),
            unknown=tuple(each for each in wanted if each not in known),
            committed=tuple(each for each in wanted if each in taken),
        )

    def commit(self, repeat_times: int, task_ids: Sequence[str] = ()) -> Committed:
        """Make groups of what is judged: of each task with `repeat_times` runs, and of those named as they are."""
        made: list[int] = []
        moved = 0
        with self._writing() as connection:
            runs = self._judged_runs(connection)
            is_done = {task: count >= repeat_times or is_alone for task, (count, is_alone) in runs.items()}
            for task in [task for task in runs if is_done[task] or task in task_ids]:
                group, number = self._gather(connection, task)
                made.append(group)
                moved += number
        waiting = {task: count for task, (count, _) in runs.items() if not is_done[task] and task not in task_ids}
        return Committed(tuple(made), moved, waiting)

    def finished(self) -> int:
        """Groups that were ever committed."""
        return self._count(groups.c.run == self._run)

    def unbound(self) -> int:
        """Committed groups that have no task yet."""
        return self._count(sa.and_(groups.c.run == self._run, groups.c.ordinal.is_(None)))

    def bind(self, ordinal: int) -> int | None:
        """The group that answers a task: the one that has it already, or the oldest that has none; None without one."""
        free = sa.select(groups.c.id).where(groups.c.run == self._run, groups.c.ordinal.is_(None))
        oldest = free.order_by(groups.c.id).limit(1).scalar_subquery()
        for _ in range(_ATTEMPTS):
            with self._writing() as connection:
                bound = self._bound(connection, ordinal)
                if bound is not None:
                    return bound
                taken = sa.update(groups).where(groups.c.id == oldest, groups.c.ordinal.is_(None))
                group = connection.execute(taken.values(ordinal=ordinal).returning(groups.c.id)).scalar()
                if group is not None or not connection.execute(free.limit(1)).first():
                    return None if group is None else int(group)
        return None

    def unbind(self, group: int) -> None:
        """The task is another's: the group wants another one. A group that was published keeps its task."""
        mine = sa.and_(groups.c.id == group, groups.c.published_at.is_(None))
        with self._writing() as connection:
            connection.execute(sa.update(groups).where(mine).values(ordinal=None))

    def unpublished(self) -> list[tuple[int, int]]:
        """Groups with a task that are not known to be published, each with its ordinal."""
        mine = sa.and_(groups.c.run == self._run, groups.c.ordinal.isnot(None), groups.c.published_at.is_(None))
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(groups.c.id, groups.c.ordinal).where(mine)).all()
        return [(int(group), int(ordinal)) for group, ordinal in found]

    def published(self, group: int) -> None:
        """The answer is stored on the bus."""
        with self._writing() as connection:
            connection.execute(sa.update(groups).where(groups.c.id == group).values(published_at=time.time()))

    def messages_of(self, group: int) -> tuple[str, list[Message]]:
        """The client's name of a group's task, and its messages in the order in which they were sampled."""
        chosen = sa.select(messages).where(messages.c.group_id == group).order_by(messages.c.id)
        with self._engine.connect() as connection:
            task = connection.execute(sa.select(groups.c.task_id).where(groups.c.id == group)).scalar_one()
            rows = connection.execute(chosen).mappings().all()
        return str(task), [Message(_call(dict(row)), str(row["run_id"]), float(row["reward"])) for row in rows]

    def counts(self) -> dict[str, int]:
        """How many messages and groups there are, by what became of them."""
        mine, judged = messages.c.run == self._run, messages.c.reward.isnot(None)
        with self._engine.connect() as connection:

            def number(table: sa.Table, *which: sa.ColumnElement[bool]) -> int:
                return int(connection.execute(sa.select(sa.func.count()).select_from(table).where(*which)).scalar_one())

            return {
                "messages": number(messages, mine),
                "judged": number(messages, mine, judged),
                "committed": number(messages, mine, messages.c.group_id.isnot(None)),
                "groups": number(groups, groups.c.run == self._run),
                "groups_published": number(groups, groups.c.run == self._run, groups.c.published_at.isnot(None)),
            }

    def _identity(self) -> str:
        """The id of this run's history in this database, made by whoever comes first."""
        chosen = sa.select(histories.c.history).where(histories.c.run == self._run)
        with self._engine.connect() as connection:
            known = connection.execute(chosen).scalar()
        if known is not None:
            return str(known)
        try:
            with self._writing() as connection:
                connection.execute(sa.insert(histories).values(run=self._run, history=uuid.uuid4().hex))
        except IntegrityError:
            pass  # another process was faster: its id holds
        with self._engine.connect() as connection:
            return str(connection.execute(chosen).scalar_one())

    def _judged_runs(self, connection: sa.Connection) -> dict[str, tuple[int, bool]]:
        """The judged tasks that are not committed, the oldest first: their runs, and whether nothing can join them."""
        mine = sa.and_(messages.c.run == self._run, messages.c.reward.isnot(None), messages.c.group_id.is_(None))
        runs = sa.func.count(sa.distinct(messages.c.run_id))
        chosen = sa.select(messages.c.task_id, runs, sa.func.max(sa.cast(messages.c.is_alone, sa.Integer)))
        found = connection.execute(
            chosen.where(mine).group_by(messages.c.task_id).order_by(sa.func.min(messages.c.id))
        ).all()
        return {str(task): (int(count), bool(is_alone)) for task, count, is_alone in found}

    def _gather(self, connection: sa.Connection, task: str) -> tuple[int, int]:
        made = sa.insert(groups).values(run=self._run, task_id=task, committed_at=time.time())
        group = int(connection.execute(made.returning(groups.c.id)).scalar_one())
        judged = sa.and_(messages.c.reward.isnot(None), messages.c.group_id.is_(None))
        mine = sa.and_(messages.c.run == self._run, messages.c.task_id == task, judged)
        return group, connection.execute(sa.update(messages).where(mine).values(group_id=group)).rowcount

    def _bound(self, connection: sa.Connection, ordinal: int) -> int | None:
        mine = sa.and_(groups.c.run == self._run, groups.c.ordinal == ordinal)
        group = connection.execute(sa.select(groups.c.id).where(mine)).scalar()
        return None if group is None else int(group)

    def _count(self, which: sa.ColumnElement[bool]) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(groups).where(which)).scalar_one())

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction. One writes at a time, of all processes that share the database."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql(_BEGIN[self._engine.dialect.name])
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()


def _opened(url: str) -> sa.Engine:
    """The database, with its tables."""
    try:
        place = place_of(url)
        if place.kind != "sql":
            raise StoreError(
                f"{url} is no database: write sqlite:///FILE.db or postgresql://USER:PASSWORD@HOST/DATABASE"
            )
        engine = engine_of(place)
        _make_place(file_of(place))
    except StoreError as error:
        raise HistoryUnusable(f"explorer.db_url={url}: {error}") from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _begun_by_us)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(_BEGIN[engine.dialect.name])
            metadata.create_all(connection)
            connection.commit()
    except OperationalError as error:
        raise HistoryUnusable(f"explorer.db_url={url} cannot be opened: {error.orig}") from error
    return engine


_BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7470361)"}
"""How a transaction begins that keeps other writers out; the number is ours alone in the database."""


def _make_place(file: Path | None) -> None:
    if file is not None:
        make_directory(file.parent)


def _begun_by_us(connection: Any, _: Any) -> None:
    """Writers of several processes wait for each other."""
    connection.isolation_level = None  # transactions are begun by us
    connection.execute(f"PRAGMA busy_timeout={int(1000 * _BUSY_S)}")


def _row(run: str, call: Call) -> dict[str, Any]:
    completion = call.completion
    return {
        "run": run,
        "msg_id": call.request_id,
        "choice": call.choice,
        "sampled_at": call.at,
        "prompt_text": call.prompt_text,
        "response_text": completion.text,
        "prompt_ids": np.asarray(call.prompt_ids, dtype="<i4").tobytes(),
        "response_ids": completion.token_ids.astype("<i4").tobytes(),
        "logprobs": completion.logprobs.astype("<f4").tobytes(),
        "token_versions": completion.token_versions.astype("<i4").tobytes(),
        "incarnation": call.incarnation,
        "temperature": call.temperature,
        "is_truncated": completion.is_truncated,
    }


def _call(row: Mapping[str, Any]) -> Call:
    array: Callable[[str, str], Any] = lambda name, kind: np.frombuffer(bytes(row[name]), kind)  # noqa: E731
    completion = Completion(
        token_ids=array("response_ids", "<i4"),
        logprobs=array("logprobs", "<f4"),
        token_versions=array("token_versions", "<i4"),
        text=row["response_text"],
        is_truncated=bool(row["is_truncated"]),
    )
    return Call(
        row["msg_id"],
        int(row["choice"]),
        tuple(array("prompt_ids", "<i4").tolist()),
        row["prompt_text"],
        completion,
        temperature=float(row["temperature"]),
        incarnation=int(row["incarnation"]),
        at=float(row["sampled_at"]),
    )
