"""The summary of a replay, put together from its own streams: what `summary.json` holds."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.reports import MetricsReported
from schemas.state import Counts
from services.account.snapshot import snapshot
from services.trainer.config import ReplayConfig


@dataclass
class _Steps:
    """What the trainer has reported, by step: a step that was made again counts once."""

    reward: dict[int, float] = field(default_factory=dict)
    kl: dict[int, float] = field(default_factory=dict)
    off_policy: dict[int, bool] = field(default_factory=dict)

    def take(self, report: MetricsReported) -> None:
        values, step = report.values, report.step
        if "critic/rewards/mean" in values:
            self.reward[step] = values["critic/rewards/mean"]
        if "actor/ppo_kl" in values:
            self.kl[step] = values["actor/ppo_kl"]
        if "replay/is_off_policy" in values:
            self.off_policy[step] = values["replay/is_off_policy"] > 0


async def summarize_replay(bus: Bus, replay: ReplayConfig, started_at: float) -> dict[str, Any]:
    """The account of a replay that began at `started_at` (seconds since the epoch)."""
    now, steps = await snapshot(bus), _Steps()
    async for delivery in bus.read(Stream.METRICS, follow=False):
        if isinstance(delivery.message, MetricsReported) and delivery.message.service == "trainer":
            steps.take(delivery.message)
    counts = now.train.counts if now.train else Counts()
    return {
        "run": bus.run,
        "source": replay.source,
        "from_sequence": replay.from_sequence,
        "to_sequence": replay.to_sequence,
        "checkpoint": replay.checkpoint,
        "phase": now.phase if now.phase == "finished" else "stopped",
        "steps": now.step,
        "wall_s": round(time.time() - started_at, 3),
        "reward_by_step": [steps.reward[step] for step in sorted(steps.reward)],
        "experiences": counts.model_dump(mode="json"),
        "off_policy": {
            "max_kl": replay.max_kl,
            "steps": sorted(step for step, is_off in steps.off_policy.items() if is_off),
            "largest_kl": max(steps.kl.values(), key=abs, default=None),
        },
    }


def replay_lines(summary: dict[str, Any]) -> Iterator[str]:
    """The summary in a few lines for a person."""
    counts, off = summary["experiences"], summary["off_policy"]
    yield f"{summary['run']}: {summary['phase']} at step {summary['steps']} after {summary['wall_s']:.0f} s"
    yield (
        f"of {summary['source']}: {counts['trained']} experiences trained, {trained_again(counts)}"
        f"{sum(counts['filtered'].values())} filtered, {counts['duplicates']} duplicates, "
        f"{counts['quarantined']} messages unusable"
    )
    if off["steps"]:
        shown = ", ".join(map(str, off["steps"][:8])) + (" ..." if len(off["steps"]) > 8 else "")
        yield (
            f"off-policy: {len(off['steps'])} steps have |ppo_kl| above {off['max_kl']:g} (steps {shown}; largest "
            f"{off['largest_kl']:.3g}): this run's policy is far from the one that sampled"
        )
    elif off["largest_kl"] is not None:
        yield f"within the bound: largest |ppo_kl| {abs(off['largest_kl']):.3g}, bound {off['max_kl']:g}"


def trained_again(counts: Mapping[str, Any]) -> str:
    """The words about what was trained on more than once, where anything was."""
    return f"{counts['reused']} trained again, " if counts.get("reused") else ""
