"""A checkpoint is gone on from only where the stream still holds what it has not seen, and what it may use again."""

from pathlib import Path

import pytest

from bus.port import StreamState
from services.config.reuse import ReuseRule
from services.trainer.committing import CannotResume, assert_whole
from services.trainer.ledger import Ledger, Numbers
from services.trainer.reuse.pool import Pool, Pooled
from services.trainer.reuse.record import Reuse, RuleSince

RULE = ReuseRule(train_batch_size=16, capacity=24, use_count_limit=3)
POOL = Pool((Pooled(sequence=3, ordinal=2, version=0, experiences=4, tokens=12),), time=1.0)
LEDGER = Ledger(sequences=Numbers(floor=10), reuse=Reuse((RuleSince(1, RULE),), POOL))
PLACE = Path("run/global_step_4")


def _stream(first: int, last: int = 20) -> StreamState:
    return StreamState(messages=last - first + 1, size_bytes=0, first=first, last=last, limit_bytes=None)


def test_a_stream_that_holds_all_is_whole() -> None:
    assert_whole(LEDGER, PLACE, _stream(3), uses_again=True)
    assert_whole(LEDGER, PLACE, _stream(10))


def test_what_was_not_seen_must_be_there() -> None:
    with pytest.raises(CannotResume, match=r"goes on at sequence 10 .* begins at 11"):
        assert_whole(LEDGER, PLACE, _stream(11))


def test_what_may_be_used_again_must_be_there_where_the_run_uses_it() -> None:
    assert_whole(LEDGER, PLACE, _stream(8))
    with pytest.raises(CannotResume, match=r"may use again experiences from sequence 3 .* begins at 8"):
        assert_whole(LEDGER, PLACE, _stream(8), uses_again=True)


def test_a_stream_that_ends_before_the_checkpoint_is_another() -> None:
    with pytest.raises(CannotResume, match="this is another bus"):
        assert_whole(LEDGER, PLACE, _stream(1, last=5), uses_again=True)
