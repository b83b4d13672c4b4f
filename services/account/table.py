"""The experience stream as rows: one for each experience, in stream order."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled

_ROWS_PER_WRITE = 2048


async def rows(bus: Bus, start: int = 1, end: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """Experiences from stream sequence `start` up to `end` (inclusive; None: as far as there are any now)."""
    async for delivery in bus.read(Stream.EXPERIENCES, start=start, follow=False):
        if end is not None and delivery.sequence > end:
            return
        if isinstance(delivery.message, GroupSampled):
            for experience in delivery.message.experiences:
                yield row(delivery.sequence, delivery.message, experience)


def row(sequence: int, group: GroupSampled, experience: Experience) -> dict[str, Any]:
    """One experience in plain values. `tokens` holds prompt and response; the other lists, the response alone."""
    return {
        "sequence": sequence,
        "task_id": group.task.task_id,
        "ordinal": group.task.ordinal,
        "batch": group.task.batch,
        "taskset": group.task.taskset,
        "epoch": group.task.epoch,
        "index": group.task.index,
        "explorer": group.explorer,
        "incarnation": group.incarnation,
        "position": experience.position,
        "step": experience.step,
        "tokens": experience.tokens,
        "prompt_length": experience.prompt_length,
        "action_mask": experience.action_mask,
        "logprobs": experience.logprobs,
        "token_versions": experience.token_versions,
        "temperature": experience.temperature,
        "reward": experience.reward,
        "is_truncated": experience.is_truncated,
        "prompt_text": experience.prompt_text,
        "response_text": experience.response_text,
        "metrics": sorted(experience.metrics.items()),
    }


async def write_parquet(bus: Bus, path: Path, start: int = 1, end: int | None = None) -> int:
    """Write the stream as parquet. Returns the number of rows."""
    import pyarrow.parquet

    schema = _schema()
    written, gathered = 0, []
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        async for item in rows(bus, start, end):
            gathered.append(item)
            if len(gathered) == _ROWS_PER_WRITE:
                writer.write_table(pyarrow.Table.from_pylist(gathered, schema=schema))
                written, gathered = written + len(gathered), []
        writer.write_table(pyarrow.Table.from_pylist(gathered, schema=schema))
    return written + len(gathered)


def _schema() -> Any:
    import pyarrow as pa

    whole, text = pa.int64(), pa.string()
    columns = dict.fromkeys(("sequence", "ordinal", "batch", "epoch", "index", "incarnation"), whole)
    columns |= dict.fromkeys(("position", "step", "prompt_length"), whole)
    columns |= dict.fromkeys(("task_id", "taskset", "explorer", "prompt_text", "response_text"), text)
    columns |= {name: pa.list_(pa.int32()) for name in ("tokens", "token_versions")}
    columns |= {"action_mask": pa.list_(pa.uint8()), "logprobs": pa.list_(pa.float32())}
    columns |= {"temperature": pa.float64(), "reward": pa.float64(), "is_truncated": pa.bool_()}
    columns["metrics"] = pa.map_(text, pa.float64())
    order = list(row_columns())
    return pa.schema([(name, columns[name]) for name in order])


def row_columns() -> tuple[str, ...]:
    """The columns of a row, in order."""
    return (
        "sequence",
        "task_id",
        "ordinal",
        "batch",
        "taskset",
        "epoch",
        "index",
        "explorer",
        "incarnation",
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
        "metrics",
    )
