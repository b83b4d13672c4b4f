"""From reports to curves. Pure: the same reports, in the same order, always give the same entries."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from schemas.reports import MetricsReported, ServiceName
from services.monitor.record import ENTRIES_PER_SEQUENCE, Entry

_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}


@dataclass
class _Open:
    """The reports of a step that has not been reported in full."""

    parts: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    at: float = 0.0


class Gathering:
    """Gathers the parts of a step, of all explorers together, into its entry.

    A value's name may end in `:mean`, `:sum`, `:max`, `:min` or `:last`, which says how parts are put together; the
    mean is the default. Samples give `<name>/mean`, `/max` and `/min`.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[ServiceName, int], _Open] = {}

    def add(self, report: MetricsReported, sequence: int) -> list[Entry]:
        """The entry that `report`, the stream's message `sequence`, completes."""
        key = (report.service, report.step)
        if report.parts <= 1:
            alone = _Open()
            _put(alone, report)
            return list(_entries(sequence * ENTRIES_PER_SEQUENCE, key, alone))
        gathered = self._open.setdefault(key, _Open())
        _put(gathered, report)
        gathered.parts += 1
        if gathered.parts < report.parts:
            return []
        del self._open[key]
        return list(_entries(sequence * ENTRIES_PER_SEQUENCE, key, gathered))

    def flush(self, sequence: int) -> list[Entry]:
        """The entries of steps of which parts never came, as tasks were abandoned, when the run ended after the
        message `sequence`."""
        rest = sorted(self._open.items())
        self._open.clear()
        first = sequence * ENTRIES_PER_SEQUENCE + 1
        last = first + ENTRIES_PER_SEQUENCE - 2
        places = [*range(first, first + len(rest) - 1), last]
        return [entry for place, each in zip(places, rest, strict=False) for entry in _entries(place, *each)]


def _put(gathered: _Open, report: MetricsReported) -> None:
    for name, value in report.values.items():
        gathered.values.setdefault(name, []).append(value)
    for name, numbers in report.samples.items():
        gathered.samples.setdefault(name, []).extend(numbers)
    gathered.at = max(gathered.at, report.at)


def _entries(position: int, key: tuple[ServiceName, int], gathered: _Open) -> Iterator[Entry]:
    """One, or none where there are no values."""
    values = dict(_values(gathered))
    if values:
        yield Entry(position, *key, gathered.at, values)


def _values(gathered: _Open) -> Iterator[tuple[str, float]]:
    for name, values in gathered.values.items():
        stem, _, aggregate = name.rpartition(":")
        known = stem != "" and aggregate in _AGGREGATES
        combine = _AGGREGATES[aggregate if known else "mean"]
        yield stem if known else name, float(combine(values))
    for name, numbers in gathered.samples.items():
        yield from _spread(name, numbers)


def _spread(name: str, numbers: Iterable[float]) -> Iterator[tuple[str, float]]:
    values = list(numbers)
    if not values:
        return
    for suffix, value in (("mean", fmean(values)), ("max", max(values)), ("min", min(values))):
        yield f"{name}/{suffix}", float(value)
