"""Shares of wall time from overlapping spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.account.shares import length, neither, shares, union

INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10)).map(lambda pair: (float(pair[0]), float(pair[0] + pair[1])))
)


@given(INTERVALS)
def test_a_union_covers_each_second_once(intervals: list[tuple[float, float]]) -> None:
    covered = {second for start, end in intervals for second in range(int(start), int(end))}
    assert length(union(intervals)) == len(covered)


def test_shares_add_up_over_a_window() -> None:
    found = shares({"sampling": [(0.0, 4.0), (2.0, 6.0)], "syncing": [(8.0, 12.0)]}, (0.0, 10.0))
    assert found == pytest.approx({"sampling": 0.6, "syncing": 0.2, "idle": 0.2})


def test_neither_is_what_lies_between_sampling_and_training() -> None:
    assert neither([(1.0, 3.0)], [(4.0, 5.0)]) == pytest.approx(0.25)
    assert neither([], []) is None
