"""A snapshot says what is full or waits, why, and which setting decides."""

from typing import Any

from bus.port import StreamState
from schemas.state import ReleaseProgress, TrainProgress
from schemas.weights import WeightVersion
from services.account.snapshot import Snapshot

MIB = 2**20


def _stream(messages: int, size_bytes: int, limit_bytes: int | None) -> StreamState:
    return StreamState(messages=messages, size_bytes=size_bytes, first=1, last=messages, limit_bytes=limit_bytes)


def _snapshot(streams: dict[str, StreamState], **progress: Any) -> Snapshot:
    return Snapshot(
        run="p/n",
        at=0.0,
        release=progress.get("release"),
        train=progress.get("train"),
        newest=None,
        members=(),
        streams=streams,
    )


def test_a_stream_that_is_nearly_full_names_the_settings_that_decide() -> None:
    found = _snapshot({"experiences": _stream(9, 61 * MIB, 64 * MIB)})
    assert found.full_streams == ("experiences",)
    (notice,) = found.notices
    assert notice.startswith("stream experiences is 95% full (61.0 of 64.0 MiB)")
    for setting in ("bus.max_experience_bytes", "buffer.retain", "trainer.save_interval"):
        assert setting in notice


def test_a_stream_that_has_room_or_drops_its_oldest_is_no_notice() -> None:
    found = _snapshot({"experiences": _stream(9, 57 * MIB, 64 * MIB), "metrics": _stream(9, 256 * MIB, 256 * MIB)})
    assert found.notices == ()


def test_who_waits_for_what_is_told_and_the_quarantine_counted() -> None:
    release = ReleaseProgress(term=1, phase="releasing", released=4, batches=1, waiting_for="batch 1 waits for step 1")
    train = TrainProgress(weights=WeightVersion(), step=0, answered_floor=0, answered=0, waiting_for="a full stream")
    found = _snapshot({"quarantine": _stream(3, 100, None)}, release=release, train=train)
    assert found.notices == ("trainer waits: a full stream", "synchronizer waits: batch 1 waits for step 1")
    plain = found.as_json()
    assert (plain["quarantined"], plain["trainer_waiting_for"], plain["full_streams"]) == (3, "a full stream", [])
