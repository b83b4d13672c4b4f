"""What counts as an attempt, and when a task is answered alone."""

import pytest

from schemas.state import ReleaseProgress, Segment, TasksetShare
from services.explorer.attempts import Tried
from services.explorer.config import ExplorerConfig
from services.explorer.offering import tasksets_of


@pytest.mark.parametrize(
    ("attempt", "deaths", "most", "alone"),
    [
        (4, 3, 4, True),
        (4, 1, 4, True),
        (4, 0, 4, False),  # every failure was told: it fails by itself
        (3, 2, 4, False),
        (5, 4, 4, False),  # it is given up, not answered
        (1, 0, 1, False),
    ],
)
def test_a_task_that_ended_explorers_is_answered_alone_before_it_is_given_up(
    attempt: int, deaths: int, most: int, alone: bool
) -> None:
    assert Tried(attempt, deaths).is_last_chance(most) is alone


def test_an_explorer_serves_all_tasksets_unless_some_are_named() -> None:
    assert ExplorerConfig().tasksets == []


def test_the_tasksets_of_a_run_are_those_of_all_its_segments() -> None:
    first = Segment(first_ordinal=0, tasksets=(TasksetShare(name="old"),))
    second = Segment(first_ordinal=8, tasksets=(TasksetShare(name="old", consumed=8), TasksetShare(name="new")))
    progress = ReleaseProgress(term=1, phase="releasing", released=9, batches=2, segments=(first, second))
    assert tasksets_of(progress) == {"old", "new"}
    assert tasksets_of(None) == set()
