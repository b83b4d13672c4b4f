"""From reports to curves. Pure: the same reports, in the same order, always give the same points."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from schemas.reports import MetricsReported, ServiceName

_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}


@dataclass(frozen=True)
class Point:
    """One value of one curve."""

    service: ServiceName
    name: str
    step: int
    value: float
    at: float


@dataclass
class _Open:
    """The reports of a step that has not been reported in full."""

    parts: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    at: float = 0.0


class Gathering:
    """Gathers the parts of a step, of all explorers together, into its points.

    A value's name may end in `:mean`, `:sum`, `:max`, `:min` or `:last`, which says how parts are put together; the
    mean is the default. Samples give `<name>/mean`, `/max` and `/min`.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[ServiceName, int], _Open] = {}

    def add(self, report: MetricsReported) -> list[Point]:
        """The points that `report` completes."""
        if report.parts <= 1:
            alone = _Open()
            _put(alone, report)
            return list(_points(report.service, report.step, alone))
        key = (report.service, report.step)
        gathered = self._open.setdefault(key, _Open())
        _put(gathered, report)
        gathered.parts += 1
        if gathered.parts < report.parts:
            return []
        del self._open[key]
        return list(_points(*key, gathered))

    def flush(self) -> list[Point]:
        """The points of steps of which parts never came: tasks that were abandoned."""
        rest = [point for key, gathered in sorted(self._open.items()) for point in _points(*key, gathered)]
        self._open.clear()
        return rest


def _put(gathered: _Open, report: MetricsReported) -> None:
    for name, value in report.values.items():
        gathered.values.setdefault(name, []).append(value)
    for name, numbers in report.samples.items():
        gathered.samples.setdefault(name, []).extend(numbers)
    gathered.at = max(gathered.at, report.at)


def _points(service: ServiceName, step: int, gathered: _Open) -> Iterator[Point]:
    for name, values in gathered.values.items():
        stem, _, aggregate = name.rpartition(":")
        known = stem != "" and aggregate in _AGGREGATES
        combine = _AGGREGATES[aggregate if known else "mean"]
        yield Point(service, stem if known else name, step, float(combine(values)), gathered.at)
    for name, numbers in gathered.samples.items():
        yield from _spread(service, name, step, numbers, gathered.at)


def _spread(service: ServiceName, name: str, step: int, numbers: Iterable[float], at: float) -> Iterator[Point]:
    values = list(numbers)
    if not values:
        return
    for suffix, value in (("mean", fmean(values)), ("max", max(values)), ("min", min(values))):
        yield Point(service, f"{name}/{suffix}", step, float(value), at)
