"""What the pipeline tells of a step, by Trinity-RFT's names under `experience_pipeline/`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

PREFIX = "experience_pipeline"

_TOGETHER: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}


def told(kept: int, filtered: Iterable[Mapping[str, int]], metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a step of `kept` experiences, from what each of its groups says."""
    by_rule: Counter[str] = Counter()
    for counts in filtered:
        by_rule.update(counts)
    found = {f"{PREFIX}/experience_count": float(kept), f"{PREFIX}/filtered_count": float(by_rule.total())}
    found |= {f"{PREFIX}/filtered_count/{rule}": float(count) for rule, count in sorted(by_rule.items())}
    return found | {f"{PREFIX}/{name}": value for name, value in _together(metrics).items()}


def _together(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    together: dict[str, float] = {}
    for name, found in sorted(values.items()):
        stem, _, way = name.rpartition(":")
        is_told_how = bool(stem) and way in _TOGETHER
        together[stem if is_told_how else name] = float((_TOGETHER[way] if is_told_how else fmean)(found))
    return together
