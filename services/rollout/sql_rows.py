"""Rows of a table of a SQL database as tasks, in the order of its primary key."""

import json
from typing import Any

import sqlalchemy as sa

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError, nearest
from services.store.errors import StoreError
from services.store.place import place_of
from services.store.sql import engine_of, file_of

RAW = "raw_task"
"""A column that holds a whole row as JSON, as Trinity-RFT's task tables do; others beside it are not read."""


def sql_rows(name: str, config: TasksetConfig) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the table `subset_name`, or of the taskset's name, at the URL `path`; and their columns.

    Raises:
        TasksetError: there is no such database or table, or its order is not certain.
    """
    try:
        place = place_of(config.path or "")
        if place.kind != "sql":
            raise TasksetError(name, f"{config.path} is no URL of a database: write sqlite:///FILE.db")
        file = file_of(place)
        if file is not None and not file.is_file():
            raise TasksetError(name, f"{file} is not there")
        engine = engine_of(place)
    except StoreError as error:
        raise TasksetError(name, str(error)) from error
    try:
        return _rows(name, config.subset_name or name, engine)
    except sa.exc.SQLAlchemyError as error:
        raise TasksetError(name, f"{place.shown}: {getattr(error, 'orig', None) or error}") from error
    finally:
        engine.dispose()


def _rows(name: str, table_name: str, engine: sa.Engine) -> tuple[list[dict[str, Any]], list[str]]:
    tables = sa.inspect(engine).get_table_names()
    if table_name not in tables:
        said = f"the database has no table {table_name!r}: {nearest(table_name, tables)}"
        raise TasksetError(name, f"{said} (subset_name names the table, else the taskset's name)")
    table = sa.Table(table_name, sa.MetaData(), autoload_with=engine)
    if not table.primary_key.columns:
        raise TasksetError(
            name, f"table {table_name!r} has no primary key, so the order of its rows is not certain: give it one"
        )
    with engine.connect() as connection:
        found = connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings()
        rows = [{str(key): value for key, value in row.items()} for row in found]
    if RAW in table.columns:
        rows = [_unpacked(name, row[RAW], number) for number, row in enumerate(rows)]
    return rows, list(rows[0]) if rows else table.columns.keys()


def _unpacked(name: str, value: object, number: int) -> dict[str, Any]:
    try:
        row = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise TasksetError(name, f"row {number}: {RAW} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise TasksetError(name, f"row {number}: {RAW} is no JSON object")
    return row
