"""Which part of a stream a step, a sequence or a time means."""

from collections.abc import AsyncIterator

import pytest

from bus.port import Outline
from services.replay.errors import ReplayError
from services.replay.span import Part, Place, Span, place, resolved, seconds


async def _outlines(*stored_at: float) -> AsyncIterator[Outline]:
    for sequence, at in enumerate(stored_at, start=1):
        yield Outline(sequence, "subject", 10, at, {})


async def _span(start: Place, end: Place, found=()) -> Span:
    return await resolved(Part(start, end), found, _outlines(100.0, 200.0, 200.0, 300.0))


async def test_nothing_said_is_the_whole_stream() -> None:
    assert await _span(Place(), Place()) == Span(1, None)


async def test_sequences_are_taken_as_they_are() -> None:
    assert await _span(Place(sequence=5), Place(sequence=9)) == Span(5, 9)


async def test_a_step_begins_after_and_ends_with_what_its_checkpoint_holds(checkpoint_of) -> None:
    found = [checkpoint_of(4, 17), checkpoint_of(8, 33)]
    assert await _span(Place(step=4), Place(step=8), found) == Span(17, 32)


async def test_step_0_is_the_beginning(checkpoint_of) -> None:
    assert await _span(Place(step=0), Place(), [checkpoint_of(4, 17)]) == Span(1, None)


async def test_a_step_without_a_checkpoint_lists_those_there_are(checkpoint_of) -> None:
    with pytest.raises(ReplayError, match="no checkpoint of step 5: checkpoints are at steps 4, 8"):
        await _span(Place(step=5), Place(), [checkpoint_of(4, 17), checkpoint_of(8, 33)])
    with pytest.raises(ReplayError, match="it has no checkpoint"):
        await _span(Place(), Place(step=5))


async def test_times_include_what_was_stored_at_them() -> None:
    assert await _span(Place(time=200.0), Place(time=200.0)) == Span(2, 3)
    assert await _span(Place(time=150.0), Place()) == Span(2, None)
    assert await _span(Place(), Place(time=250.0)) == Span(1, 3)


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (Place(time=301.0), Place(), "nothing was stored after"),
        (Place(), Place(time=99.0), "nothing was stored before"),
        (Place(time=210.0), Place(time=205.0), "the end comes first"),
        (Place(sequence=9), Place(sequence=5), "between sequence 9 and sequence 5"),
    ],
)
async def test_a_part_with_nothing_in_it_is_refused(start, end, words) -> None:
    with pytest.raises(ReplayError, match=words):
        await _span(start, end)


def test_a_place_is_named_in_one_way() -> None:
    assert place("from", None, 3, None) == Place(sequence=3)
    with pytest.raises(ReplayError, match="--from-step and --from-time"):
        place("from", 1, None, "0")
    with pytest.raises(ReplayError, match="--to-sequence=0"):
        place("to", None, 0, None)


def test_times_are_read_as_seconds_or_iso_8601() -> None:
    assert seconds("1785580200.5") == 1785580200.5
    assert seconds("2026-08-01T12:30:00+02:00") == 1785580200.0
    with pytest.raises(ReplayError, match="is no time"):
        seconds("yesterday")
