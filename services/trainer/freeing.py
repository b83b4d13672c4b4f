"""Freeing the experience stream, by `buffer.retain`. Only what a committed checkpoint's ledger covers is ever freed,
and of that nothing that may be trained on again, and only what is in the stores that the configuration names."""

import time

import structlog

from bus.port import Bus, StreamState
from bus.subjects import Stream
from schemas.state import StoreProgress
from services.config.retention import Retention
from services.runtime.keys import STORED

log = structlog.get_logger()

NEARLY_FULL = 0.9


def is_nearly_full(state: StreamState) -> bool:
    """Whether publishers will soon have to wait."""
    return state.limit_bytes is not None and state.size_bytes > NEARLY_FULL * state.limit_bytes


async def freeable(bus: Bus, rule: Retention, covered: int, oldest_kept: int) -> int:
    """The sequence below which the stream may be freed.

    Args:
        covered: the lowest sequence that a trainer needs which goes on from the newest checkpoint.
        oldest_kept: that of the oldest checkpoint that is kept.
    """
    if rule.kind == "all":
        return 0
    if rule.kind == "checkpoint":
        return min(covered, oldest_kept)
    left_bytes = (await bus.state(Stream.EXPERIENCES)).size_bytes
    oldest_s = time.time() - rule.amount
    async for outline in bus.outlines(Stream.EXPERIENCES):
        is_kept = left_bytes <= rule.amount if rule.kind == "size" else outline.stored_at >= oldest_s
        if is_kept or outline.sequence >= covered:
            return min(outline.sequence, covered)
        left_bytes -= outline.size_bytes
    return covered


async def free(bus: Bus, rule: Retention, covered: int, oldest_kept: int) -> int:
    """Free what may be freed. Returns how many messages that were."""
    before = await bus.state(Stream.EXPERIENCES)
    below = await freeable(bus, rule, covered, oldest_kept)
    if below <= before.first or before.messages == 0:
        return 0
    await bus.purge(Stream.EXPERIENCES, up_to=below)
    after = await bus.state(Stream.EXPERIENCES)
    log.info("experiences_freed", below_sequence=below, freed_bytes=before.size_bytes - after.size_bytes)
    return before.messages - after.messages


async def stored(bus: Bus) -> StoreProgress:
    """How far the stores are that the configuration names; nothing is stored where no monitor has said so."""
    found = await bus.get(STORED)
    return found.message if found and isinstance(found.message, StoreProgress) else StoreProgress(sequence=0)


def held_for_reuse(state: StreamState, experiences: int) -> str:
    """What a trainer tells that waits at a stream which is full of what it may train on again."""
    return (
        f"the experience stream is full ({state.size_bytes} of {state.limit_bytes} bytes) of {experiences} experiences "
        "that may be trained on again: make buffer.trainer_input.experience_buffer.capacity smaller, or raise "
        "bus.max_experience_bytes"
    )


def fullness(
    state: StreamState,
    retain: str,
    next_sequence: int,
    gathered: int,
    wanted: int,
    stores: StoreProgress | None = None,
) -> str:
    """What a trainer that waits at a full stream tells, and which setting decides. `stores` where there are any."""
    held = f"the experience stream is full ({state.size_bytes} of {state.limit_bytes} bytes)"
    if stores is not None and stores.sequence < min(state.last, next_sequence - 1):
        why = stores.waiting_for or "see whether the run's monitor is alive"
        return f"{held}, and its stores have it only up to sequence {stores.sequence} of {state.last}: {why}"
    if state.first >= next_sequence:
        return (
            f"{held}, and no batch fits in it ({gathered} of {wanted} experiences are there): raise "
            "bus.max_experience_bytes, or make buffer.train_batch_size smaller"
        )
    return f"{held} of what buffer.retain={retain} keeps: raise bus.max_experience_bytes, or keep less"
