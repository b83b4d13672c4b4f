"""Reports of one step become one point a curve, however many explorers sent them."""

from schemas.reports import MetricsReported
from services.monitor.gathering import Gathering, Point


def _report(parts: int, values: dict[str, float], samples: dict[str, tuple[float, ...]] | None = None, at: float = 1.0):
    return MetricsReported(
        run="r", service="explorer", source="e", step=3, values=values, samples=samples or {}, parts=parts, at=at
    )


def test_parts_are_put_together_as_their_names_say() -> None:
    gathering = Gathering()
    assert gathering.add(_report(2, {"a": 1.0, "n:sum": 4.0}, {"r": (0.0, 1.0)})) == []
    points = gathering.add(_report(2, {"a": 3.0, "n:sum": 5.0}, {"r": (2.0,)}, at=2.0))
    assert points == [
        Point("explorer", "a", 3, 2.0, 2.0),
        Point("explorer", "n", 3, 9.0, 2.0),
        Point("explorer", "r/mean", 3, 1.0, 2.0),
        Point("explorer", "r/max", 3, 2.0, 2.0),
        Point("explorer", "r/min", 3, 0.0, 2.0),
    ]


def test_a_report_that_stands_alone_is_written_at_once() -> None:
    assert Gathering().add(_report(0, {"a": 1.0})) == [Point("explorer", "a", 3, 1.0, 1.0)]


def test_steps_that_never_became_whole_are_written_at_the_end() -> None:
    gathering = Gathering()
    gathering.add(_report(2, {"a": 1.0}))
    assert gathering.flush() == [Point("explorer", "a", 3, 1.0, 1.0)]
    assert gathering.flush() == []


def test_a_colon_that_names_no_aggregate_is_part_of_the_name() -> None:
    assert Gathering().add(_report(0, {"a:b": 1.0}))[0].name == "a:b"
