"""The experience stream as rows: one for each experience and one for each abandoned task, in stream order.

Together the rows hold everything that training depends on, so that a stream can be made of them again.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled, TaskAbandoned

SAMPLED, ABANDONED = "sampled", "abandoned"

OF_EXPERIENCE = (
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
"""The columns that are fields of an experience as they are."""

OF_TASK = ("ordinal", "batch", "taskset", "epoch", "index")
"""Those that are fields of a task's identity."""

OF_GROUP = ("incarnation", "attempt", "started_at", "finished_at", "tokenizer")
"""Those that are fields of a group, beside what each message of the stream has."""

OF_MESSAGE = ("explorer", "run", "repeat_times", "retry")
"""Those that each message of the stream has."""

_ROWS_PER_WRITE = 2048
_TOKENS_PER_WRITE = 4_000_000

Told = Callable[[int], None]


async def rows(bus: Bus, start: int = 1, end: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """Experiences from stream sequence `start` up to `end` (inclusive; None: as far as there are any now)."""
    async for item in records(bus, start, end):
        if item["kind"] == SAMPLED:
            yield item


async def records(bus: Bus, start: int = 1, end: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """`rows`, and among them the tasks that were abandoned, whose columns of an experience are None."""
    async for delivery in bus.read(Stream.EXPERIENCES, start=start, follow=False):
        if end is not None and delivery.sequence > end:
            return
        if isinstance(delivery.message, GroupSampled):
            for experience in delivery.message.experiences:
                yield row(delivery.sequence, delivery.message, experience, delivery.stored_at)
        elif isinstance(delivery.message, TaskAbandoned):
            yield abandoned_row(delivery.sequence, delivery.message, delivery.stored_at)


def row(sequence: int, group: GroupSampled, experience: Experience, stored_at: float = 0.0) -> dict[str, Any]:
    """One experience in plain values. `tokens` holds prompt and response; the other lists, the response alone."""
    return {
        "sequence": sequence,
        **_task(group),
        **{name: getattr(group, name) for name in OF_GROUP},
        **{name: getattr(experience, name) for name in OF_EXPERIENCE},
        "metrics": sorted(experience.metrics.items()),
        "kind": SAMPLED,
        "stored_at": stored_at,
    }


def abandoned_row(sequence: int, task: TaskAbandoned, stored_at: float = 0.0) -> dict[str, Any]:
    """A task that nobody could answer, in plain values. `attempt` counts the attempts, `finished_at` is when it was
    given up."""
    return {
        **dict.fromkeys(row_columns()),
        "sequence": sequence,
        **_task(task),
        "kind": ABANDONED,
        "attempt": task.attempts,
        "finished_at": task.abandoned_at,
        "error": task.error,
        "stored_at": stored_at,
    }


async def write_parquet(
    bus: Bus, path: Path, start: int = 1, end: int | None = None, tell: Told = lambda written: None
) -> int:
    """Write the stream as parquet; the file is whole or not there. Returns the number of experiences.

    `tell` hears from time to time how many experiences are written.
    """
    import pyarrow.parquet

    schema = parquet_schema()
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.writing")
    try:
        with pyarrow.parquet.ParquetWriter(aside, schema) as writer:
            async for portion in _portions(bus, start, end):
                writer.write_table(pyarrow.Table.from_pylist(portion, schema=schema))
                written += sum(item["kind"] == SAMPLED for item in portion)
                tell(written)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return written


async def _portions(bus: Bus, start: int, end: int | None) -> AsyncIterator[list[dict[str, Any]]]:
    """The records in lists that bound the memory of writing them."""
    gathered: list[dict[str, Any]] = []
    tokens = 0
    async for item in records(bus, start, end):
        gathered.append(item)
        tokens += 0 if item["tokens"] is None else len(item["tokens"])
        if len(gathered) >= _ROWS_PER_WRITE or tokens >= _TOKENS_PER_WRITE:
            yield gathered
            gathered, tokens = [], 0
    yield gathered


def _task(message: GroupSampled | TaskAbandoned) -> dict[str, Any]:
    task = message.task
    return {
        "task_id": task.task_id,
        **{name: getattr(task, name) for name in OF_TASK},
        **{name: getattr(message, name) for name in OF_MESSAGE},
        "error": None,
    }


def parquet_schema() -> Any:
    """The columns with their types, as an Arrow schema."""
    import pyarrow as pa

    whole, text, real = pa.int64(), pa.string(), pa.float64()
    columns = dict.fromkeys(("sequence", "ordinal", "batch", "epoch", "index", "incarnation"), whole)
    columns |= dict.fromkeys(("position", "step", "prompt_length", "repeat_times", "attempt", "retry"), whole)
    columns |= dict.fromkeys(("task_id", "taskset", "explorer", "prompt_text", "response_text"), text)
    columns |= dict.fromkeys(("kind", "run", "tokenizer", "error", "state"), text)
    columns |= dict.fromkeys(("temperature", "reward", "started_at", "finished_at", "stored_at", "step_reward"), real)
    columns |= {name: pa.list_(pa.int32()) for name in ("tokens", "token_versions")}
    columns |= {name: pa.list_(pa.float32()) for name in ("logprobs", "teacher_logprobs")}
    columns |= {"action_mask": pa.list_(pa.uint8())}
    columns |= {"is_truncated": pa.bool_(), "metrics": pa.map_(text, real)}
    return pa.schema([(name, columns[name]) for name in row_columns()])


def row_columns() -> tuple[str, ...]:
    """The columns of a row, in order."""
    of_message = ("sequence", "task_id", *OF_TASK, *OF_MESSAGE, *OF_GROUP)
    return (*of_message, *OF_EXPERIENCE, "metrics", "kind", "error", "stored_at")
