"""An acknowledged publish is stored once, whatever the server does; a full stream makes publishers wait."""

import asyncio
import dataclasses

import pytest
from structlog.testing import capture_logs

from bus.errors import BusRefused, PublishTimeout, RevisionConflict, StreamFull
from bus.port import LeaseTerms
from bus.settings import HEADER_ROOM_BYTES, KIB, MIB, BusSettings
from bus.subjects import Stream


def small(settings: BusSettings, **changes) -> BusSettings:
    return dataclasses.replace(settings, **changes)


async def test_a_message_published_twice_is_stored_once(bus, said):
    first = await bus.publish(said.group(1, "first"))
    again = await bus.publish(said.group(1, "again"))
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert again.sequence == first.sequence
    assert (await bus.state(Stream.EXPERIENCES)).messages == 1


async def test_metrics_without_an_id_of_their_own_are_each_stored(bus, said):
    await bus.publish(said.metrics(1))
    await bus.publish(said.metrics(1))
    assert (await bus.state(Stream.METRICS)).messages == 2


async def test_trap_a_purged_id_is_still_a_duplicate(bus, said):
    stored = await bus.publish(said.group(1))
    await bus.purge(Stream.EXPERIENCES, stored.sequence + 1)
    assert (await bus.publish(said.group(1))).is_duplicate


async def test_a_window_of_publishes_is_stored_in_order(bus, said):
    stored = await bus.publish_all([said.task(ordinal) for ordinal in range(200)], window=16)
    assert [each.sequence for each in stored] == list(range(1, 201))


async def test_a_full_stream_makes_publish_wait_and_go_on_after_a_purge(join, said, settings, eventually):
    bus = await join(small(settings, max_experience_bytes=200 * KIB))
    await bus.declare()
    first = await bus.publish(said.group(0, "x" * 150 * KIB))
    with capture_logs() as logs:
        waiting = asyncio.create_task(bus.publish(said.group(1, "y" * 150 * KIB)))
        line = await eventually(lambda: [each for each in logs if each["event"] == "publish_waiting"])
        assert "bus.max_experience_bytes" in line[0]["todo"]
        assert str(200 * KIB) in line[0]["todo"]
        assert not waiting.done()
        await bus.purge(Stream.EXPERIENCES, first.sequence + 1)
        stored = await asyncio.wait_for(waiting, 5.0)
    assert not stored.is_duplicate
    assert (await bus.last(Stream.EXPERIENCES)).message == said.group(1, "y" * 150 * KIB)


async def test_a_full_stream_is_a_typed_error_at_the_deadline(join, said, settings):
    bus = await join(small(settings, max_experience_bytes=200 * KIB))
    await bus.declare()
    await bus.publish(said.group(0, "x" * 150 * KIB))
    with pytest.raises(StreamFull, match="maximum bytes"):
        await bus.publish(said.group(1, "y" * 150 * KIB), deadline_s=0.3)
    assert [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [
        said.group(0, "x" * 150 * KIB)
    ]


async def test_trap_a_rejected_publish_keeps_its_id_free(join, said, settings):
    bus = await join(small(settings, max_experience_bytes=200 * KIB))
    await bus.declare()
    await bus.publish(said.group(0, "x" * 150 * KIB))
    with pytest.raises(StreamFull):
        await bus.publish(said.group(1, "y" * 150 * KIB), deadline_s=0.1)
    await bus.purge(Stream.EXPERIENCES, 2)
    assert not (await bus.publish(said.group(1, "y" * 150 * KIB))).is_duplicate


async def test_a_publish_with_no_server_times_out_at_its_deadline(bus, said, server, kill):
    await kill(server)
    with pytest.raises(PublishTimeout):
        await bus.publish(said.group(1), deadline_s=0.5)


async def test_no_acked_message_is_lost_or_stored_twice_when_the_server_is_killed(bus, said, server, kill, eventually):
    total = 400
    acked: dict[int, int] = {}

    async def publish(ordinal: int) -> None:
        acked[ordinal] = (await bus.publish(said.group(ordinal, "z" * 4 * KIB))).sequence

    gate = asyncio.Semaphore(32)

    async def gated(ordinal: int) -> None:
        async with gate:
            await publish(ordinal)

    publishing = asyncio.gather(*(gated(ordinal) for ordinal in range(total)))
    await eventually(lambda: len(acked) > total // 4)
    await kill(server)
    acked_before = dict(acked)
    assert len(acked_before) < total
    await server.start()
    await asyncio.wait_for(publishing, 30.0)
    heard = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    where = {delivery.message.task.ordinal: delivery.sequence for delivery in heard}
    assert len(heard) == total
    assert sorted(where) == list(range(total))
    assert {ordinal: where[ordinal] for ordinal in acked_before} == acked_before


async def test_cancelling_a_publish_leaves_the_bus_usable(bus, said, server, kill):
    await kill(server)
    publishing = asyncio.create_task(bus.publish(said.group(1)))
    await asyncio.sleep(0)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await server.start()
    assert not (await bus.publish(said.group(2))).is_duplicate


async def test_trap_a_payload_just_under_the_limit_with_headers_keeps_the_connection(join, said, settings):
    """The client does not count header bytes; the server does, and would close the connection for good."""
    largest = 8 * MIB - HEADER_ROOM_BYTES
    bus = await join(small(settings, spill_bytes=largest))
    await bus.declare()
    overhead = len(encoded(said.group(0, "")))
    message = said.group(0, "w" * (largest - overhead - 8))
    assert largest - 16 <= len(encoded(message)) <= largest
    await bus.publish(message)
    assert (await bus.last(Stream.EXPERIENCES)).message == message
    assert (await bus.state(Stream.BLOBS)).messages == 0
    assert bus.is_connected


def encoded(message) -> bytes:
    from schemas.codec import encode

    return encode(message)


async def test_a_message_over_the_spill_limit_travels_as_a_claim_and_comes_back_whole(join, said, settings):
    bus = await join(small(settings, spill_bytes=MIB))
    await bus.declare()
    message = said.group(0, "v" * 3 * MIB)
    await bus.publish(message)
    assert (await bus.state(Stream.BLOBS)).messages == 4
    assert (await bus.state(Stream.EXPERIENCES)).size_bytes < 2 * KIB
    assert (await bus.last(Stream.EXPERIENCES)).message == message
    assert [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [message]


async def test_a_purge_frees_the_blobs_that_only_the_purged_claimed(join, said, settings):
    bus = await join(small(settings, spill_bytes=MIB))
    await bus.declare()
    first = await bus.publish(said.group(0, "v" * 2 * MIB))
    await bus.publish(said.group(1, "u" * 2 * MIB))
    await bus.purge(Stream.EXPERIENCES, first.sequence + 1)
    assert (await bus.state(Stream.BLOBS)).messages == 3
    assert [each.message.task.ordinal async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [1]


async def test_a_second_answer_that_spilled_leaves_no_blob_behind(join, said, settings):
    bus = await join(small(settings, spill_bytes=MIB))
    await bus.declare()
    await bus.publish(said.group(0, "v" * 2 * MIB))
    before = (await bus.state(Stream.BLOBS)).messages
    assert (await bus.publish(said.group(0, "w" * 2 * MIB))).is_duplicate
    assert (await bus.state(Stream.BLOBS)).messages == before
    assert (await bus.last(Stream.EXPERIENCES)).message == said.group(0, "v" * 2 * MIB)


async def test_a_claim_on_absent_chunks_is_quarantined(join, said, settings, raw):
    bus = await join(small(settings, spill_bytes=MIB))
    await bus.declare()
    await bus.publish(said.group(0, "v" * 2 * MIB))
    await raw.jetstream().purge_stream("trinity_project_name-9eaac94c_blobs".replace("9eaac94c", digest()))
    (delivery,) = [each async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    assert delivery.message is None
    assert "chunks are there" in delivery.error
    assert "chunks are there" in (await bus.last(Stream.QUARANTINE)).message.reason


def digest() -> str:
    import hashlib

    return hashlib.sha256(b"project/name").hexdigest()[:8]


async def test_a_spilled_task_comes_back_and_its_blob_goes_with_the_ack(join, said, settings):
    bus = await join(small(settings, spill_bytes=MIB, terms=LeaseTerms(lease_s=10.0)))
    await bus.declare()
    await bus.publish(said.task(0, text="t" * 2 * MIB))
    (delivery,) = await (await bus.queue()).pull(1, 5.0)
    assert delivery.message == said.task(0, text="t" * 2 * MIB)
    await delivery.ack()
    assert (await bus.state(Stream.BLOBS)).messages == 0


async def test_a_spill_limit_without_room_for_headers_is_refused():
    with pytest.raises(ValueError, match=r"bus\.spill_bytes=8388608"):
        BusSettings(spill_bytes=8 * MIB)


async def test_a_run_that_was_not_declared_is_a_clear_error(join, said):
    bus = await join(run="undeclared")
    with pytest.raises(BusRefused, match="declare"):
        await anext(bus.read(Stream.EXPERIENCES))
    with pytest.raises(BusRefused, match="declare"):
        await (await bus.queue()).pull(1, 0.1)
    with pytest.raises(PublishTimeout):
        await bus.publish(said.group(run="undeclared"), deadline_s=0.3)


async def test_trap_headers_are_not_changed_by_a_publish_with_a_time_to_live(bus, said):
    """A second use of the same header dict would carry the first one's time to live."""
    await bus.put("kept", said.held("a"), ttl_s=1)
    revision = await bus.put("kept", said.held("b"))
    assert (await bus.get("kept")).revision == revision


async def test_a_conditional_publish_is_stored_once_and_only_after_what_it_expects(bus, said) -> None:
    first = await bus.publish_next(said.group(0), after=0)
    again = await bus.publish_next(said.group(0), after=0)
    assert (first.sequence, again.sequence, again.is_duplicate) == (1, 1, True)
    with pytest.raises(RevisionConflict):
        await bus.publish_next(said.group(1), after=0)
    assert (await bus.publish_next(said.group(1), after=1)).sequence == 2
