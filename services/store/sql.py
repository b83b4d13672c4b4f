"""A SQL database as a store. Rows and position are set in one transaction, so that none is lost or there twice."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from bus.subjects import MESSAGE_IDS
from schemas.experiences import GroupSampled
from services.account.table import ABANDONED, SAMPLED, row_columns
from services.store.directories import assert_writable, make_directory
from services.store.errors import StoreBusy, StoreError
from services.store.messages import Row, task_of
from services.store.place import Place
from services.store.sql_schema import AbandonedTaskModel, Base, ExperienceModel, StorePositionModel

_INSERTS: dict[str, Callable[[type[Base]], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_BUSY_S = 5.0
_SEQUENCES_PER_READ = 64


class SqlStore:
    """The experiences of one run in a database, which may hold other runs beside it."""

    held = 0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.position = 0
        self._run = ""
        self._consumed_below = 0
        self._engine: Engine | None = None

    def open(self, run: str) -> None:
        self._run = run
        self._engine = self._engine or engine_of(self.place)
        file = file_of(self.place)
        if file is not None:
            make_directory(file.parent)
        with _told(self.place):
            check_layout(self._engine, self.place)
            Base.metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                self._insert(connection, StorePositionModel, [{"run": run, "sequence": 0}])
                of_run = StorePositionModel.run == run
                self.position = connection.execute(sa.select(StorePositionModel.sequence).where(of_run)).scalar_one()

    def write(self, rows: Sequence[Row], position: int) -> None:
        """Store all of it or nothing.

        Raises:
            StoreError: another process has written to the same run's rows meanwhile.
        """
        assert self._engine is not None, "open() first"
        with _told(self.place), self._engine.begin() as connection:
            of_run = (StorePositionModel.run == self._run, StorePositionModel.sequence == self.position)
            moved = connection.execute(sa.update(StorePositionModel).where(*of_run).values(sequence=position))
            if moved.rowcount != 1:
                raise StoreError(
                    f"{self.place.shown}: another process writes the experiences of {self._run} too: stop one of them"
                )
            self._insert(connection, ExperienceModel, [_experience(row) for row in rows if row["kind"] == SAMPLED])
            self._insert(connection, AbandonedTaskModel, [_task(row) for row in rows if row["kind"] == ABANDONED])
        self.position = position

    def settle(self) -> None:
        """Everything is stored already."""

    def note_consumed(self, below: int) -> None:
        """A trainer that goes back to an older checkpoint takes back what it had consumed."""
        if below == self._consumed_below:
            return
        assert self._engine is not None, "open() first"
        model = ExperienceModel
        sequences = (model.run == self._run, model.sequence < below), (model.run == self._run, model.sequence >= below)
        with _told(self.place), self._engine.begin() as connection:
            for (of_run, part), value in zip(sequences, (1, 0), strict=True):
                changed = sa.update(model).where(of_run, part, model.consumed != value).values(consumed=value)
                connection.execute(changed)
        self._consumed_below = min(below, self.position + 1)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _insert(self, connection: Connection, model: type[Base], values: list[dict[str, Any]]) -> None:
        """What is there already stays as it is."""
        if values:
            connection.execute(_INSERTS[connection.dialect.name](model).on_conflict_do_nothing(), values)


def engine_of(place: Place, *, is_kept: bool = True) -> Engine:
    """An engine for the database. One that is not kept has no connection open but while it is used.

    Raises:
        StoreError: its URL cannot be read, or its driver is not installed.
    """
    try:
        url = sa.make_url(place.path)
        is_file = url.get_backend_name() == "sqlite"
        engine = sa.create_engine(
            url,
            connect_args={"timeout": _BUSY_S} if is_file else {},
            pool_pre_ping=not is_file,
            poolclass=None if is_kept else NullPool,
        )
    except ModuleNotFoundError as error:
        raise StoreError(f"{place.shown} needs {error.name}: pip install 'trinity-rft-bus[postgresql]'") from error
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError) as error:
        raise StoreError(f"{place.shown} is no URL of a database: {error}") from error
    if is_file:
        event.listen(engine, "connect", _keep_safely)
    return engine


def _keep_safely(connection: Any, record: object) -> None:
    """Readers do not hold up the writer, and what is committed outlives a power cut."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def check_layout(engine: Engine, place: Place) -> None:
    """
    Raises:
        StoreError: a table of our name has other columns.
    """
    inspector = sa.inspect(engine)
    for table in Base.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        there = {column["name"] for column in inspector.get_columns(table.name)}
        missing = [column.name for column in table.columns if column.name not in there]
        if missing:
            raise StoreError(
                f"{place.shown}: its table {table.name} lacks {', '.join(missing)}, so another program or version "
                "wrote it: choose another database"
            )


def runs(engine: Engine, place: Place) -> list[str]:
    """The runs of which the database holds experiences."""
    with _told(place):
        check_layout(engine, place)
        if not sa.inspect(engine).has_table(ExperienceModel.__tablename__):
            return []
        with engine.connect() as connection:
            found = connection.execute(sa.select(ExperienceModel.run).distinct().order_by(ExperienceModel.run))
            return list(found.scalars())


def stored_rows(engine: Engine, place: Place, run: str, start: int = 1) -> Iterator[Row]:
    """What the database holds of `run`, from sequence `start` on, in the stream's order."""
    last, number = start - 1, 0
    while True:
        with _told(place), engine.connect() as connection:
            portion = _portion(connection, run, last)
        if not portion:
            return
        for row in portion:
            yield {"row": number, **row}
            number += 1
        last = portion[-1]["sequence"]


def rows_of(place: Place, run: str | None, start: int) -> Iterator[Row]:
    """`stored_rows` of the run that is meant, or of the only one.

    Raises:
        StoreError: the database holds no experiences, or those of several runs and none is named.
    """
    file = file_of(place)
    if file is not None and not file.is_file():
        raise StoreError(f"{place.shown}: {file} is not there: set the path to a store that a run has written")
    engine = engine_of(place, is_kept=False)
    held = runs(engine, place)
    if run is None and len(held) == 1:
        run = held[0]
    if run not in held:
        wanted = f"none of run {run}" if run else "several runs and none is named"
        there = f"it holds {', '.join(held)}" if held else "it holds none at all"
        raise StoreError(f"{place.shown}: {wanted if held else 'no experiences'}: {there}")
    return stored_rows(engine, place, str(run), start)


def reach(place: Place) -> None:
    """
    Raises:
        StoreError: the database cannot be reached or written, or holds other tables under our names.
    """
    engine, file = engine_of(place), file_of(place)
    if file is not None:
        assert_writable(file)
        if not file.exists():
            return
    try:
        with _told(place):
            check_layout(engine, place)
            with engine.begin() as connection:
                if file is not None:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
    except StoreBusy as error:
        if "is locked" not in str(error):  # somebody is writing: that passes
            raise
    finally:
        engine.dispose()


def file_of(place: Place) -> Path | None:
    """The file of a database that is one."""
    url = sa.make_url(place.path)
    return Path(url.database or "").absolute() if url.get_backend_name() == "sqlite" else None


def _portion(connection: Connection, run: str, after: int) -> list[Row]:
    """The rows of the next sequences, in order."""
    gathered: list[Row] = []
    models: tuple[type[ExperienceModel] | type[AbandonedTaskModel], ...] = (ExperienceModel, AbandonedTaskModel)
    following = [sa.select(model.sequence).where(model.run == run, model.sequence > after) for model in models]
    either = sa.union(*following).subquery()
    chosen = sa.select(either.c.sequence).order_by(either.c.sequence).limit(_SEQUENCES_PER_READ)
    sequences = list(connection.execute(chosen).scalars())
    if not sequences:
        return []
    for model, kind in zip(models, (SAMPLED, ABANDONED), strict=True):
        table = model.__table__
        of_part = (table.c.run == run, table.c.sequence > after, table.c.sequence <= sequences[-1])
        found = connection.execute(sa.select(table).where(*of_part)).mappings()
        gathered += [_row(dict(values), kind) for values in found]
    return sorted(gathered, key=lambda row: (row["sequence"], row["position"] or 0, row["step"] or 0))


def _experience(row: Row) -> dict[str, Any]:
    """The columns of an experience."""
    own = {name: value for name, value in row.items() if name not in ("kind", "error", "index")}
    answer = GroupSampled.model_construct(
        run=row["run"], task=task_of(row), repeat_times=1, explorer="", experiences=(), retry=row["retry"]
    )
    return own | {
        "task_index": row["index"],
        "run_id": row["position"],
        "msg_id": MESSAGE_IDS[GroupSampled](answer),
        "model_version": int(row["token_versions"].max()),
        "response_length": len(row["tokens"]) - row["prompt_length"],
        "metrics": dict(row["metrics"]),
    }


def _task(row: Row) -> dict[str, Any]:
    """The columns of a task that was abandoned."""
    columns = AbandonedTaskModel.__table__.columns.keys()
    return {name: row["index" if name == "task_index" else name] for name in columns}


def _row(values: dict[str, Any], kind: str) -> Row:
    """The row that these columns were made of."""
    known = {**dict.fromkeys(row_columns()), **values, "index": values["task_index"], "kind": kind}
    if kind == SAMPLED:
        known["metrics"] = sorted(values["metrics"].items())
    return {name: known[name] for name in row_columns()}


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """SQLAlchemy's errors as ours."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise StoreBusy(f"{place.shown}: {_reason(error)}") from error
    except exc.DBAPIError as error:
        kind = StoreBusy if error.connection_invalidated else StoreError
        raise kind(f"{place.shown}: {_reason(error)}") from error
    except exc.SQLAlchemyError as error:
        raise StoreError(f"{place.shown}: {_reason(error)}") from error


def _reason(error: exc.SQLAlchemyError) -> str:
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(original).__name__])[0]
