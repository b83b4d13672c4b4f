"""`buffer.retain`, on a real stream: what may go goes, and nothing that no checkpoint holds."""

import pytest

from bus.port import StreamState
from bus.subjects import Stream
from services.config.retention import Retention
from services.trainer.freeing import free, fullness


@pytest.fixture
async def ten(bus, said):
    """A bus with ten groups of one size."""
    for ordinal in range(10):
        await bus.publish(said.group(ordinal, text="x" * 1000))
    return bus


async def _left(bus) -> list[int]:
    return [outline.sequence async for outline in bus.outlines(Stream.EXPERIENCES)]


async def test_all_keeps_all(ten) -> None:
    assert await free(ten, Retention("all"), covered=11, oldest_kept=11) == 0
    assert len(await _left(ten)) == 10


async def test_a_size_keeps_the_newest_that_fit(ten) -> None:
    size = (await ten.state(Stream.EXPERIENCES)).size_bytes
    assert await free(ten, Retention("size", size * 0.35), covered=11, oldest_kept=11) == 7
    assert await _left(ten) == [8, 9, 10]
    assert (await ten.state(Stream.EXPERIENCES)).size_bytes <= size * 0.35


async def test_what_no_checkpoint_holds_stays_whatever_the_size(ten) -> None:
    assert await free(ten, Retention("size", 0.0), covered=4, oldest_kept=4) == 3
    assert (await _left(ten))[0] == 4


async def test_an_age_keeps_the_young(ten) -> None:
    assert await free(ten, Retention("age", 3600.0), covered=11, oldest_kept=11) == 0
    assert await free(ten, Retention("age", 0.0), covered=6, oldest_kept=6) == 5
    assert (await _left(ten))[0] == 6


async def test_checkpoint_keeps_what_the_oldest_kept_one_does_not_hold(ten) -> None:
    assert await free(ten, Retention("checkpoint"), covered=9, oldest_kept=5) == 4
    assert (await _left(ten))[0] == 5


async def test_a_stream_may_be_freed_whole(ten, said) -> None:
    assert await free(ten, Retention("size", 0.0), covered=11, oldest_kept=11) == 10
    assert await free(ten, Retention("size", 0.0), covered=11, oldest_kept=11) == 0
    assert (await ten.publish(said.group(10))).sequence == 11


def test_a_full_stream_is_told_with_the_setting_that_decides() -> None:
    state = StreamState(messages=9, size_bytes=950, first=1, last=9, limit_bytes=1000)
    assert "buffer.retain=all keeps: raise bus.max_experience_bytes, or keep less" in fullness(state, "all", 5, 0, 8)
    assert "no batch fits in it (4 of 8 experiences are there)" in fullness(state, "50%", 1, 4, 8)
