"""The summary of a run on rows of data or on stored experiences, put together from its own streams: what `summary.json`
holds."""

import time
from collections.abc import Iterator
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.reports import MetricsReported
from schemas.state import Counts
from schemas.weights import WeightsAnnounced
from services.account.replayed import trained_again
from services.account.snapshot import snapshot
from services.config.tree import RunConfig
from services.store.sinks import source

LOSS = "actor/pg_loss"


async def summarize_rows(bus: Bus, config: RunConfig, started_at: float) -> dict[str, Any]:
    """The account of a run that began at `started_at` (seconds since the epoch)."""
    now, newest = await snapshot(bus), await bus.last(Stream.WEIGHTS)
    loss: dict[int, float] = {}
    async for delivery in bus.read(Stream.METRICS, follow=False):
        message = delivery.message
        if isinstance(message, MetricsReported) and LOSS in message.values:
            loss[message.step] = message.values[LOSS]  # a step that was made again counts once
    counts, saved = (now.train.counts, now.train.checkpoint_step) if now.train else (Counts(), 0)
    announced = newest.message if newest and isinstance(newest.message, WeightsAnnounced) else None
    is_saved_later = saved > (announced.weights.version if announced else 0)
    buffer = config.buffer.trainer_input.experience_buffer
    return {
        "run": bus.run,
        "algorithm": config.algorithm.algorithm_type,
        "data": source(config).shown if config.experience_source == "store" else buffer.path if buffer else None,
        "phase": now.phase if now.phase == "finished" else "stopped",
        "steps": now.step,
        "wall_s": round(time.time() - started_at, 3),
        "loss_by_step": [loss[step] for step in sorted(loss)],
        "experiences": counts.model_dump(mode="json"),
        "tokens": {"trained": counts.tokens_trained},
        "weights": announced.uri if announced else None,
        "checkpoint": str(config.run_dir / f"global_step_{saved}") if is_saved_later else None,
    }


def rows_lines(summary: dict[str, Any]) -> Iterator[str]:
    """The summary in a few lines for a person."""
    counts, loss = summary["experiences"], summary["loss_by_step"]
    yield f"{summary['run']}: {summary['phase']} after {summary['steps']} steps in {summary['wall_s']:.0f} s"
    rules = ", ".join(f"{count} {rule}" for rule, count in sorted(counts["filtered"].items()))
    yield (
        f"{summary['algorithm']} on {summary['data']}: {counts['trained']} experiences trained "
        f"({summary['tokens']['trained']} tokens), {trained_again(counts)}{sum(counts['filtered'].values())} filtered"
        + (f" ({rules})" if rules else "")
    )
    if loss:
        yield f"loss: {loss[0]:.4f} at the first step, {loss[-1]:.4f} at the last"
    if summary["weights"]:
        yield f"weights: {summary['weights']}"
    if summary["checkpoint"]:
        yield f"newer than these weights: {summary['checkpoint']}; the same command again goes on from there"
