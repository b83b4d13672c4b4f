"""Single messages can be taken out of a stream; the blobs that only they held go with them, and no others."""

from dataclasses import replace

import pytest

from bus.errors import BlobMissing
from bus.subjects import Stream, stream_subjects
from schemas.codec import decode, encode
from schemas.reports import Quarantined

SPILLED_BYTES = 64 * 1024


def _settings(settings):
    return replace(settings, spill_bytes=SPILLED_BYTES // 2)


def _kept(bus, payload: bytes, sequence: int) -> Quarantined:
    return Quarantined(
        run=bus.run, reason="a test", stream="experiences", subject="s", sequence=sequence, payload=payload
    )


async def _payload(bus, stream: Stream, sequence: int) -> bytes:
    (found,) = [delivery async for delivery in bus.read(stream, start=sequence, follow=False)]
    return bytes(found.payload)


async def test_a_message_that_is_removed_is_gone_and_the_others_stay(bus, said) -> None:
    stored = [await bus.publish(said.group(ordinal)) for ordinal in range(3)]
    assert await bus.remove(Stream.EXPERIENCES, stored[1].sequence, 99) == 1
    left = [delivery.sequence async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    assert left == [1, 3]
    assert await bus.remove(Stream.EXPERIENCES, stored[1].sequence) == 0


async def test_a_blob_that_others_claim_stays_until_the_last_of_them_is_removed(join, said, settings) -> None:
    bus = await join(_settings(settings))
    await bus.declare()
    group = said.group(0, text="x" * SPILLED_BYTES)
    stored = await bus.publish(group)
    claim = await _payload(bus, Stream.EXPERIENCES, stored.sequence)
    digest = await bus.put_blob(encode(group))
    first, second = [await bus.publish(_kept(bus, claim, sequence)) for sequence in (1, 2)]
    await bus.remove(Stream.QUARANTINE, first.sequence)
    assert len(await bus.get_blob(digest)) > SPILLED_BYTES
    await bus.remove(Stream.EXPERIENCES, stored.sequence)
    assert len(await bus.get_blob(digest)) > SPILLED_BYTES  # the quarantine still holds it
    await bus.remove(Stream.QUARANTINE, second.sequence)
    with pytest.raises(BlobMissing):
        await bus.get_blob(digest)


async def test_a_quarantined_message_that_was_itself_too_large_takes_its_blob_along(join, settings) -> None:
    bus = await join(_settings(settings))
    await bus.declare()
    kept = _kept(bus, b"\xff" * SPILLED_BYTES, 1)
    stored = await bus.publish(kept)
    digest = await bus.put_blob(encode(kept))
    await bus.remove(Stream.QUARANTINE, stored.sequence)
    with pytest.raises(BlobMissing):
        await bus.get_blob(digest)


async def test_what_is_quarantined_says_by_whom_and_under_which_id_it_came(bus, raw, said) -> None:
    (experiences,) = stream_subjects(bus.run, Stream.EXPERIENCES)
    await raw.jetstream().publish(experiences.replace(">", "stranger"), b"junk", headers={"Nats-Msg-Id": "its-own"})
    assert [found.message_id async for found in bus.read(Stream.EXPERIENCES, follow=False)] == ["its-own"]
    (kept,) = [found.message async for found in bus.read(Stream.QUARANTINE, follow=False)]
    assert (kept.message_id, kept.origin) == ("its-own", "member-0")


async def test_a_message_may_be_published_under_an_id_of_its_own(bus, said) -> None:
    first = await bus.publish(said.group(0))
    again = await bus.publish(said.group(0), message_id="another")
    assert (again.sequence, again.is_duplicate) == (first.sequence + 1, False)
    assert (await bus.publish(said.group(0), message_id="another")).is_duplicate


async def test_a_quarantined_message_keeps_its_blob_when_its_stream_is_freed(join, said, settings) -> None:
    bus = await join(_settings(settings))
    await bus.declare()
    group = said.group(0, text="x" * SPILLED_BYTES)
    await bus.publish(group)
    (delivery,) = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    await bus.quarantine(delivery, Stream.EXPERIENCES, "a test")
    await bus.purge(Stream.EXPERIENCES, up_to=delivery.sequence + 1)
    assert (await bus.state(Stream.EXPERIENCES)).messages == 0
    (kept,) = [found.message async for found in bus.read(Stream.QUARANTINE, follow=False)]
    assert decode(await bus.get_blob(decode(kept.payload).digest)) == group


async def test_a_task_that_is_quarantined_and_acknowledged_is_kept_whole(join, said, settings) -> None:
    bus = await join(_settings(settings))
    await bus.declare()
    task = said.task(0, question="x" * SPILLED_BYTES)
    await bus.publish(task)
    (delivery,) = await (await bus.queue()).pull(1, wait_s=5.0)
    await bus.quarantine(delivery, Stream.TASKS, "a test")
    await delivery.ack()
    (kept,) = [found.message async for found in bus.read(Stream.QUARANTINE, follow=False)]
    assert decode(kept.payload) == task
