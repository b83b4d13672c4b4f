"""Reports of one step become one entry, however many explorers sent them."""

from schemas.reports import MetricsReported
from services.monitor.gathering import Gathering
from services.monitor.record import ENTRIES_PER_SEQUENCE, Entry


def _report(
    parts: int,
    values: dict[str, float],
    samples: dict[str, tuple[float, ...]] | None = None,
    at: float = 1.0,
    step: int = 3,
) -> MetricsReported:
    return MetricsReported(
        run="r", service="explorer", source="e", step=step, values=values, samples=samples or {}, parts=parts, at=at
    )


def _at(sequence: int, number: int = 0) -> int:
    """A position; of negative numbers, counted from the end."""
    return sequence * ENTRIES_PER_SEQUENCE + number % ENTRIES_PER_SEQUENCE


def test_parts_are_put_together_as_their_names_say_at_the_place_of_the_last() -> None:
    gathering = Gathering()
    assert gathering.add(_report(2, {"a": 1.0, "n:sum": 4.0}, {"r": (0.0, 1.0)}), 5) == []
    values = {"a": 2.0, "n": 9.0, "r/mean": 1.0, "r/max": 2.0, "r/min": 0.0}
    entries = gathering.add(_report(2, {"a": 3.0, "n:sum": 5.0}, {"r": (2.0,)}, at=2.0), 8)
    assert entries == [Entry(_at(8), "explorer", 3, 2.0, values)]


def test_a_report_that_stands_alone_is_written_at_once() -> None:
    assert Gathering().add(_report(0, {"a": 1.0}), 1) == [Entry(_at(1), "explorer", 3, 1.0, {"a": 1.0})]


def test_steps_that_never_became_whole_are_written_at_the_end_each_at_a_place_of_its_own() -> None:
    gathering = Gathering()
    gathering.add(_report(2, {"a": 1.0}), 1)
    gathering.add(_report(2, {"a": 2.0}, step=2), 2)
    assert gathering.flush(4) == [
        Entry(_at(4, 1), "explorer", 2, 1.0, {"a": 2.0}),
        Entry(_at(4, -1), "explorer", 3, 1.0, {"a": 1.0}),
    ]
    assert gathering.flush(4) == []


def test_a_report_of_nothing_is_no_entry() -> None:
    assert Gathering().add(_report(0, {}), 1) == []


def test_a_colon_that_names_no_aggregate_is_part_of_the_name() -> None:
    assert Gathering().add(_report(0, {"a:b": 1.0}), 1)[0].values == {"a:b": 1.0}
