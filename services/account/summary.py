"""The summary of a run, put together from its streams: what `summary.json` holds."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.reports import EvaluationReported, MetricsReported
from schemas.state import Counts
from services.account.shares import Interval, neither, shares
from services.account.snapshot import Snapshot, snapshot

Spans = dict[str, dict[str, list[Interval]]]


@dataclass
class _Metrics:
    """What the metrics stream says."""

    reward: dict[int, float] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    spans: Spans = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    explorers: set[str] = field(default_factory=set)
    adoption_s: list[float] = field(default_factory=list)


@dataclass
class _Stream:
    """What the experience stream holds. `waiting` lies beyond what is in the weights."""

    published: int = 0
    tokens: int = 0
    waiting: int = 0
    abandoned: set[int] = field(default_factory=set)


async def summarize(bus: Bus, started_at: float) -> dict[str, Any]:
    """The account of a run that began at `started_at` (seconds since the epoch)."""
    now = await snapshot(bus)
    metrics, held = await _metrics(bus), await _stream(bus, now)
    ended_at = time.time()
    counts = now.train.counts if now.train else Counts()
    return {
        "run": bus.run,
        "phase": now.phase,
        "steps": now.step,
        "wall_s": round(ended_at - started_at, 3),
        "reward_by_step": [metrics.reward[step] for step in sorted(metrics.reward)],
        "accuracy_by_step": [metrics.accuracy[step] for step in sorted(metrics.accuracy)],
        "evaluations": metrics.evaluations,
        "tasks": {
            "released": now.release.released if now.release else 0,
            "answered": (now.train.answered if now.train else 0) - len(held.abandoned),
            "quarantined": len(held.abandoned),
        },
        "experiences": _experiences(counts, held),
        "tokens": {"sampled": held.tokens, "trained": counts.tokens_trained},
        "time_share": _time_share(metrics, (started_at, ended_at)),
        "seconds_from_step_end_to_adoption": _median(metrics.adoption_s),
    }


def _experiences(counts: Counts, held: _Stream) -> dict[str, Any]:
    dropped = sum(number for rule, number in counts.filtered.items() if rule != "abandoned")
    accounted = counts.trained + dropped + counts.duplicates + held.waiting
    return {
        "published": held.published,
        "trained": counts.trained,
        "filtered": dict(counts.filtered),
        "quarantined": counts.quarantined,
        "duplicates": counts.duplicates,
        "waiting": held.waiting,
        "lost": held.published - accounted,
    }


async def _metrics(bus: Bus) -> _Metrics:
    found = _Metrics()
    async for delivery in bus.read(Stream.METRICS, follow=False):
        message = delivery.message
        if isinstance(message, EvaluationReported):
            found.evaluations.append(
                {"version": message.weights.version, "taskset": message.taskset, "metrics": message.metrics}
            )
        elif isinstance(message, MetricsReported):
            _take(found, message)
    return found


def _take(found: _Metrics, report: MetricsReported) -> None:
    if "critic/rewards/mean" in report.values:
        found.reward[report.step] = report.values["critic/rewards/mean"]
    if "sample/accuracy/mean" in report.values:
        found.accuracy[report.step] = report.values["sample/accuracy/mean"]
    if "explorer/time/step_end_to_adoption" in report.values and report.step > 0:
        found.adoption_s.append(report.values["explorer/time/step_end_to_adoption"])
    if report.service == "explorer":
        found.explorers.add(report.source)
    for span in report.spans:
        found.spans[report.source][span.activity].append((span.start_s, span.end_s))


async def _stream(bus: Bus, now: Snapshot) -> _Stream:
    held = _Stream()
    floor = now.train.sequence_floor if now.train else 1
    async for delivery in bus.read(Stream.EXPERIENCES, follow=False):
        if isinstance(delivery.message, GroupSampled):
            experiences = delivery.message.experiences
            held.published += len(experiences)
            held.tokens += sum(experience.response_length for experience in experiences)
            held.waiting += len(experiences) if delivery.sequence >= floor else 0
        elif isinstance(delivery.message, TaskAbandoned):
            held.abandoned.add(delivery.message.task.ordinal)
    return held


def _time_share(metrics: _Metrics, window: Interval) -> dict[str, Any]:
    spans = metrics.spans
    by_service: dict[str, Any] = {source: shares(activities, window) for source, activities in sorted(spans.items())}
    sampling = [interval for name in metrics.explorers for interval in spans[name].get("sampling", [])]
    training = [interval for activities in spans.values() for interval in activities.get("training", [])]
    return {**by_service, "neither_sampling_nor_training": neither(sampling, training)}


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
