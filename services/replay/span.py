"""Which part of a stream is meant: by optimizer step, by stream sequence, or by the time of storing.

A step's part of the stream is what its checkpoint's ledger says, so steps are those that have a checkpoint.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from bus.port import Outline
from services.replay.errors import ReplayError
from services.trainer.checkpoints import Checkpoint


@dataclass(frozen=True)
class Place:
    """A place in a stream, in one of three ways of saying it. None of them: an end of the stream."""

    step: int | None = None
    sequence: int | None = None
    time: float | None = None


ANYWHERE = Place()


@dataclass(frozen=True)
class Part:
    """The part of a stream that was asked for."""

    start: Place = ANYWHERE
    end: Place = ANYWHERE


WHOLE = Part()


@dataclass(frozen=True)
class Span:
    """Stream sequences from `first` to `last`, both included; None: to the newest."""

    first: int = 1
    last: int | None = None


def place(which: str, step: int | None, sequence: int | None, time: str | None) -> Place:
    """The place that the options `--<which>-step`, `--<which>-sequence` and `--<which>-time` name together.

    Raises:
        ReplayError: more than one of them is given, or the time is none.
    """
    given = [name for name, value in (("step", step), ("sequence", sequence), ("time", time)) if value is not None]
    if len(given) > 1:
        options = " and ".join(f"--{which}-{name}" for name in given)
        raise ReplayError(f"{options} name the same place in two ways: give one of them")
    if sequence is not None and sequence < 1:
        raise ReplayError(f"--{which}-sequence={sequence}: the first sequence of a stream is 1")
    return Place(step, sequence, None if time is None else seconds(time))


def seconds(text: str) -> float:
    """A time in seconds since the epoch, from that number or from ISO 8601 (local where it names no zone).

    Raises:
        ReplayError: it is neither.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ReplayError(
            f"{text!r} is no time: write seconds since the epoch, or like 2026-08-01T12:30:00+02:00"
        ) from None


def checkpoint_at(step: int, found: Sequence[Checkpoint]) -> Checkpoint:
    """The checkpoint of that step.

    Raises:
        ReplayError: there is none; the message lists those there are.
    """
    for checkpoint in found:
        if checkpoint.step == step:
            return checkpoint
    there = f"checkpoints are at steps {listed([each.step for each in found])}" if found else "it has no checkpoint"
    raise ReplayError(f"the run has no checkpoint of step {step}: {there}")


def listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


async def resolved(part: Part, found: Sequence[Checkpoint], outlines: AsyncIterator[Outline]) -> Span:
    """The sequences of `part` of a run with these checkpoints. `outlines` is read only where times are given.

    Raises:
        ReplayError: no checkpoint of that step, nothing that old or that new, or an end before the start.
    """
    if part.start.time is None and part.end.time is None:
        first, last = None, None
    else:
        first, last = await _stored_between(part, outlines)
    if part.start.step:
        first = checkpoint_at(part.start.step, found).ledger().sequences.floor
    if part.end.step is not None:
        last = last_of(checkpoint_at(part.end.step, found))
    span = Span(part.start.sequence or first or 1, last if part.end.sequence is None else part.end.sequence)
    if span.last is not None and span.last < span.first:
        raise ReplayError(f"nothing lies between sequence {span.first} and sequence {span.last}: the end comes first")
    return span


def last_of(checkpoint: Checkpoint) -> int:
    """The last sequence that is in the weights of a checkpoint."""
    sequences = checkpoint.ledger().sequences
    return max(sequences.above, default=sequences.floor - 1)


async def _stored_between(part: Part, outlines: AsyncIterator[Outline]) -> tuple[int | None, int | None]:
    """The first sequence stored at the start's time or later, and the last stored at the end's time or earlier."""
    start, end = part.start.time, part.end.time
    first, last = None, None
    async for outline in outlines:
        if start is not None and first is None and outline.stored_at >= start:
            first = outline.sequence
        if end is not None and outline.stored_at <= end:
            last = outline.sequence
    if start is not None and first is None:
        raise ReplayError(f"nothing was stored after {_said(start)}: the stream ends before it")
    if end is not None and last is None:
        raise ReplayError(f"nothing was stored before {_said(end)}: the stream begins after it")
    return first, last


def _said(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")
