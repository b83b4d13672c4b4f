"""Shares of wall time, from the spans that services report. Pure functions of intervals in seconds."""

from collections.abc import Iterable, Mapping, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, in disjoint intervals, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def length(intervals: Sequence[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def clipped(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The part of `intervals` inside `window`."""
    low, high = window
    return [(max(start, low), min(end, high)) for start, end in intervals if end > low and start < high]


def shares(spans: Mapping[str, Sequence[Interval]], window: Interval) -> dict[str, float]:
    """The share of `window` that each activity took, and `idle` for what none did."""
    total = window[1] - window[0]
    if total <= 0:
        return {}
    busy = {activity: length(union(clipped(intervals, window))) / total for activity, intervals in spans.items()}
    every = [interval for intervals in spans.values() for interval in intervals]
    return {**busy, "idle": 1.0 - length(union(clipped(every, window))) / total}


def neither(sampling: Sequence[Interval], training: Sequence[Interval]) -> float | None:
    """The share of time, from the first sampling or training to the last, in which there was neither."""
    computing = union([*sampling, *training])
    if not computing:
        return None
    window = (computing[0][0], computing[-1][1])
    return 1.0 - length(computing) / (window[1] - window[0])
