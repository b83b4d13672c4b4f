"""The summary of a run, put together from its streams: what `summary.json` holds."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.reports import EvaluationReported, MetricsReported
from services.account.audit import audit
from services.account.shares import Interval, neither, shares
from services.account.snapshot import snapshot
from services.config.tree import RunConfig

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
    truncated_prompts: int = 0


async def summarize(bus: Bus, config: RunConfig, started_at: float) -> dict[str, Any]:
    """The account of a run that began at `started_at` (seconds since the epoch)."""
    now, metrics, account = await snapshot(bus), await _metrics(bus), (await audit(bus, config)).account
    ended_at = time.time()
    return {
        "run": bus.run,
        "phase": now.phase,
        "steps": now.step,
        "wall_s": round(ended_at - started_at, 3),
        "reward_by_step": [metrics.reward[step] for step in sorted(metrics.reward)],
        "accuracy_by_step": [metrics.accuracy[step] for step in sorted(metrics.accuracy)],
        "evaluations": metrics.evaluations,
        "tasks": {
            "released": account.tasks.released,
            "answered": account.tasks.answered,
            "quarantined": account.tasks.abandoned,
        },
        "experiences": account.experiences(),
        "disagreements": list(account.disagreements),
        "answers_to_truncated_prompts": metrics.truncated_prompts,
        "tokens": {"sampled": account.tokens_sampled, "trained": account.tally.tokens_trained},
        "time_share": _time_share(metrics, (started_at, ended_at)),
        "seconds_from_step_end_to_adoption": _median(metrics.adoption_s),
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
        found.truncated_prompts += len(report.samples.get("rollout/prompt_truncated", ()))
    for span in report.spans:
        found.spans[report.source][span.activity].append((span.start_s, span.end_s))


def _time_share(metrics: _Metrics, window: Interval) -> dict[str, Any]:
    spans = metrics.spans
    by_service: dict[str, Any] = {source: shares(activities, window) for source, activities in sorted(spans.items())}
    sampling = [interval for name in metrics.explorers for interval in spans[name].get("sampling", [])]
    training = [interval for activities in spans.values() for interval in activities.get("training", [])]
    return {**by_service, "neither_sampling_nor_training": neither(sampling, training)}


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
