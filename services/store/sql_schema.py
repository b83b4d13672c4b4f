"""The tables of a SQL store: plain columns, so that any tool reads them.

Arrays are texts of JSON lists, of numbers with as many digits as give the same float32 again; through the model they
are numpy arrays. Everything that training depends on is here, so that a store can be trained on again.
"""

import json
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import JSON, BigInteger, Boolean, DateTime, Float, Integer, String, Text, UniqueConstraint, func
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from schemas.experiences import Experience
from services.account.table import OF_EXPERIENCE

_Id = BigInteger().with_variant(Integer, "sqlite")


class PlainText(TypeDecorator[str]):
    """Any text. PostgreSQL knows no character 0: there it becomes the replacement character."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None or dialect.name == "sqlite" else value.replace("\0", "�")


class NumberList(TypeDecorator[npt.NDArray[Any]]):
    """A one-dimensional array of a dtype, as the text of a JSON list."""

    impl = Text
    cache_ok = True

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def process_bind_param(self, value: npt.ArrayLike | None, dialect: Dialect) -> str | None:
        return None if value is None else list_text(np.asarray(value, dtype=self.dtype))

    def process_result_value(self, value: str | None, dialect: Dialect) -> npt.NDArray[Any] | None:
        return None if value is None else np.asarray(json.loads(value), dtype=self.dtype)


def list_text(array: npt.NDArray[Any]) -> str:
    """A JSON list. Nine significant digits tell any two float32 apart."""
    spelling = "{:.9g}".format if array.dtype.kind == "f" else str
    return f"[{', '.join(map(spelling, array.tolist()))}]"


class Base(DeclarativeBase):
    """The tables of a store."""


class ExperienceModel(Base):
    """One experience. `run`, `sequence`, `position` and `step` name it for ever; `id` counts rows as they came.

    `tokens` hold prompt and response, the other lists the response alone. `model_version` is the newest weight version
    that sampled a token. `stored_at` is when the bus stored it (seconds since the epoch), `timestamp` when this row
    was written. `consumed` is 1 once the trainer has dealt with its message: trained on it, or counted why not.
    `run_id` is `position` and `msg_id` the message's id on the bus.
    """

    __tablename__ = "experience"
    __table_args__ = (UniqueConstraint("run", "sequence", "position", "step", name="experience_once"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    timestamp: Mapped[datetime] = mapped_column(DateTime, server_default=func.now())
    stored_at: Mapped[float] = mapped_column(Float(53))
    run: Mapped[str] = mapped_column(String(255))
    sequence: Mapped[int] = mapped_column(BigInteger)
    position: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(Integer)
    task_id: Mapped[str] = mapped_column(PlainText, index=True)
    run_id: Mapped[int] = mapped_column(Integer, index=True)
    msg_id: Mapped[str] = mapped_column(PlainText)
    model_version: Mapped[int] = mapped_column(Integer, index=True)
    reward: Mapped[float] = mapped_column(Float(53), index=True)
    consumed: Mapped[int] = mapped_column(Integer, server_default="0", index=True)
    prompt_text: Mapped[str] = mapped_column(PlainText)
    response_text: Mapped[str] = mapped_column(PlainText)
    prompt_length: Mapped[int] = mapped_column(Integer)
    response_length: Mapped[int] = mapped_column(Integer)
    is_truncated: Mapped[bool] = mapped_column(Boolean)
    temperature: Mapped[float] = mapped_column(Float(53))
    metrics: Mapped[dict[str, float]] = mapped_column(JSON)
    tokens: Mapped[npt.NDArray[np.int32]] = mapped_column(NumberList("int32"))
    action_mask: Mapped[npt.NDArray[np.uint8]] = mapped_column(NumberList("uint8"))
    logprobs: Mapped[npt.NDArray[np.float32]] = mapped_column(NumberList("float32"))
    token_versions: Mapped[npt.NDArray[np.int32]] = mapped_column(NumberList("int32"))
    teacher_logprobs: Mapped[npt.NDArray[np.float32]] = mapped_column(NumberList("float32"))
    state: Mapped[str] = mapped_column(PlainText)
    step_reward: Mapped[float | None] = mapped_column(Float(53))
    taskset: Mapped[str] = mapped_column(PlainText)
    epoch: Mapped[int] = mapped_column(Integer)
    task_index: Mapped[int] = mapped_column(BigInteger)
    ordinal: Mapped[int] = mapped_column(BigInteger)
    batch: Mapped[int] = mapped_column(BigInteger)
    repeat_times: Mapped[int] = mapped_column(Integer)
    explorer: Mapped[str] = mapped_column(PlainText)
    incarnation: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    retry: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[float] = mapped_column(Float(53))
    finished_at: Mapped[float] = mapped_column(Float(53))
    tokenizer: Mapped[str] = mapped_column(PlainText)

    def to_experience(self) -> Experience:
        """The experience as the trainer reads it."""
        return Experience(**{name: getattr(self, name) for name in OF_EXPERIENCE}, metrics=self.metrics)


class AbandonedTaskModel(Base):
    """A task that nobody could answer. It stands in the stream in place of its experiences; batches count it."""

    __tablename__ = "abandoned_task"

    run: Mapped[str] = mapped_column(String(255), primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    stored_at: Mapped[float] = mapped_column(Float(53))
    task_id: Mapped[str] = mapped_column(PlainText)
    taskset: Mapped[str] = mapped_column(PlainText)
    epoch: Mapped[int] = mapped_column(Integer)
    task_index: Mapped[int] = mapped_column(BigInteger)
    ordinal: Mapped[int] = mapped_column(BigInteger)
    batch: Mapped[int] = mapped_column(BigInteger)
    repeat_times: Mapped[int] = mapped_column(Integer)
    explorer: Mapped[str] = mapped_column(PlainText)
    attempt: Mapped[int] = mapped_column(Integer)
    retry: Mapped[int] = mapped_column(Integer)
    finished_at: Mapped[float] = mapped_column(Float(53))
    error: Mapped[str] = mapped_column(PlainText)


class StorePositionModel(Base):
    """How far a run's stream is in this store: to `sequence`, set in the transaction that wrote the rows."""

    __tablename__ = "store_position"

    run: Mapped[str] = mapped_column(String(255), primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger)
