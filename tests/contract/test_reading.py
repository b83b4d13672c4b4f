"""A reader gives each message once and in order, whatever becomes of the server, the consumer or the bytes."""

import asyncio
import hashlib

import msgpack
import pytest

from bus.errors import BusUnavailable
from bus.settings import KIB
from bus.subjects import Stream, stream_name
from schemas.codec import encode
from schemas.reports import Quarantined

RUN = "project/name"
ROOT = "trinity.project_name-" + hashlib.sha256(RUN.encode()).hexdigest()[:8]


def bad_payloads(said) -> dict[str, bytes]:
    whole = encode(said.group(0))
    envelope = msgpack.unpackb(whole)
    return {
        "garbage": b"\xc1\x00garbage",
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "unknown schema": msgpack.packb({**envelope, "schema": "nobody_knows"}),
        "wrong version": msgpack.packb({**envelope, "version": 99}),
        "another run": encode(said.group(0, run="other")),
        "wrong place": encode(said.held()),
        "claim on nothing": msgpack.packb(
            {"schema": "blob_claimed", "version": 1, "body": {"digest": "*", "size_bytes": 1, "chunks": 1}}
        ),
    }


async def ordinals(deliveries) -> list[int]:
    return [delivery.message.task.ordinal async for delivery in deliveries]


async def test_reading_without_following_ends_at_what_was_last_when_it_was_called(bus, said):
    await bus.publish_all([said.group(ordinal) for ordinal in range(3)])
    reading = bus.read(Stream.EXPERIENCES, follow=False)
    assert (await anext(reading)).sequence == 1
    await bus.publish(said.group(3))
    assert await ordinals(reading) == [1, 2]


async def test_reading_an_empty_stream_without_following_ends(bus):
    assert [each async for each in bus.read(Stream.EXPERIENCES, follow=False)] == []


async def test_reading_a_stream_that_was_emptied_ends(bus, said):
    await bus.publish_all([said.group(ordinal) for ordinal in range(3)])
    await bus.purge(Stream.EXPERIENCES, 4)
    assert [each async for each in bus.read(Stream.EXPERIENCES, follow=False)] == []


async def test_reading_resumes_from_a_sequence(bus, said):
    await bus.publish_all([said.group(ordinal) for ordinal in range(10)])
    assert await ordinals(bus.read(Stream.EXPERIENCES, start=7, follow=False)) == [6, 7, 8, 9]


async def test_a_start_beyond_the_end_waits_for_that_sequence(bus, said, first):
    await bus.publish(said.group(0))
    reading = bus.read(Stream.EXPERIENCES, start=3)
    waiting = asyncio.create_task(first(reading, 1))
    await bus.publish(said.group(1))
    await bus.publish(said.group(2))
    assert [each.sequence for each in await waiting] == [3]


async def test_a_follower_hears_what_comes_later(bus, said, first):
    reading = bus.read(Stream.EXPERIENCES)
    waiting = asyncio.create_task(first(reading, 2))
    await bus.publish_all([said.group(0), said.group(1)])
    assert [each.message for each in await waiting] == [said.group(0), said.group(1)]


async def test_two_readers_each_hear_everything(bus, said):
    await bus.publish_all([said.group(ordinal) for ordinal in range(150)])
    both = await asyncio.gather(*(ordinals(bus.read(Stream.EXPERIENCES, follow=False)) for _ in range(2)))
    assert both == [list(range(150)), list(range(150))]


async def test_gaps_left_by_a_purge_are_skipped(bus, said):
    await bus.publish_all([said.group(ordinal) for ordinal in range(6)])
    await bus.purge(Stream.EXPERIENCES, 4)
    assert await ordinals(bus.read(Stream.EXPERIENCES, follow=False)) == [3, 4, 5]


async def test_trap_a_purge_below_the_first_sequence_frees_nothing(bus, said):
    """The server takes a purge up to sequence 0 or 1 for a purge of the whole stream."""
    await bus.publish_all([said.group(ordinal) for ordinal in range(3)])
    for up_to in (0, 1):
        await bus.purge(Stream.EXPERIENCES, up_to)
    assert (await bus.state(Stream.EXPERIENCES)).messages == 3


async def test_a_purge_beyond_the_end_does_not_skip_sequences(bus, said):
    await bus.publish(said.group(0))
    await bus.purge(Stream.EXPERIENCES, 1000)
    assert (await bus.publish(said.group(1))).sequence == 2


@pytest.mark.parametrize("kind", sorted(["garbage", "empty", "truncated", "unknown schema", "wrong version"]))
async def test_undecodable_bytes_in_every_log_are_quarantined_and_reading_goes_on(bus, raw, said, kind):
    payload = bad_payloads(said)[kind]
    quarantined = []
    logs = (Stream.EXPERIENCES, "experiences.e"), (Stream.WEIGHTS, "weights"), (Stream.METRICS, "metrics.trainer.t")
    for stream, subject in logs:
        await raw.jetstream().publish(f"{ROOT}.{subject}", payload)
        (delivery,) = [each async for each in bus.read(stream, follow=False)]
        assert delivery.message is None
        assert delivery.payload == payload
        quarantined.append((str(stream), f"{ROOT}.{subject}", 1, payload, delivery.error))
    await bus.publish(said.group(5))
    assert [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [None, said.group(5)]
    kept = [each.message async for each in bus.read(Stream.QUARANTINE, follow=False)]
    assert [(one.stream, one.subject, one.sequence, one.payload, one.reason) for one in kept] == quarantined


@pytest.mark.parametrize("kind", ["another run", "wrong place", "claim on nothing"])
async def test_well_formed_messages_that_do_not_belong_are_quarantined(bus, raw, said, kind):
    await raw.jetstream().publish(f"{ROOT}.experiences.e", bad_payloads(said)[kind])
    (delivery,) = [each async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    assert delivery.message is None
    assert (await bus.last(Stream.QUARANTINE)).message.reason == delivery.error


async def test_garbage_in_the_quarantine_itself_is_shown_and_not_quarantined_again(bus, raw):
    await raw.jetstream().publish(f"{ROOT}.quarantine.tasks", b"garbage")
    (delivery,) = [each async for each in bus.read(Stream.QUARANTINE, follow=False)]
    assert delivery.message is None
    assert (await bus.state(Stream.QUARANTINE)).messages == 1


async def test_a_bad_message_read_by_many_is_quarantined_once(bus, raw, said):
    await raw.jetstream().publish(f"{ROOT}.experiences.e", b"garbage")
    for _ in range(3):
        assert len([each async for each in bus.read(Stream.EXPERIENCES, follow=False)]) == 1
    assert (await bus.state(Stream.QUARANTINE)).messages == 1


async def test_a_delivery_that_cannot_be_used_is_quarantined_with_a_reason(bus, said):
    await bus.publish(said.group(3))
    (delivery,) = [each async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    await bus.quarantine(delivery, Stream.EXPERIENCES, "reward is out of range")
    kept = (await bus.last(Stream.QUARANTINE)).message
    assert isinstance(kept, Quarantined)
    assert (kept.reason, kept.sequence, kept.stream) == ("reward is out of range", 1, "experiences")
    assert kept.payload == encode(said.group(3))


async def test_a_reader_goes_on_when_its_consumer_is_deleted(bus, raw, said, first):
    await bus.publish_all([said.group(ordinal) for ordinal in range(100)])
    reading = bus.read(Stream.EXPERIENCES)
    assert [each.sequence for each in await first(reading, 70)] == list(range(1, 71))
    name = stream_name(RUN, Stream.EXPERIENCES)
    for consumer in await raw.jetstream().consumers_info(name):
        await raw.jetstream().delete_consumer(name, consumer.name)
    await bus.publish(said.group(100))
    assert [each.sequence for each in await first(reading, 31)] == list(range(71, 102))


async def test_trap_a_consumer_deleted_during_a_waiting_pull_is_replaced(bus, raw, said, first, eventually):
    reading = bus.read(Stream.EXPERIENCES)
    waiting = asyncio.create_task(first(reading, 1))
    name = stream_name(RUN, Stream.EXPERIENCES)
    (consumer,) = await eventually(lambda: raw.jetstream().consumers_info(name))
    await raw.jetstream().delete_consumer(name, consumer.name)
    await bus.publish(said.group(0))
    assert [each.sequence for each in await waiting] == [1]


async def test_a_reader_that_ends_leaves_no_consumer_behind(bus, raw, said, first, eventually):
    await bus.publish(said.group(0))
    reading = bus.read(Stream.EXPERIENCES)
    await first(reading, 1)
    await reading.aclose()
    name = stream_name(RUN, Stream.EXPERIENCES)
    assert await raw.jetstream().consumers_info(name) == []


async def test_a_reader_goes_on_when_the_server_was_away(bus, said, server, kill, first):
    await bus.publish_all([said.group(ordinal) for ordinal in range(100)])
    reading = bus.read(Stream.EXPERIENCES)
    heard = await first(reading, 10)
    await kill(server)
    waiting = asyncio.create_task(first(reading, 91))
    await server.start()
    await bus.publish(said.group(100))
    heard += await waiting
    assert [each.sequence for each in heard] == list(range(1, 102))


async def test_a_reader_that_was_waiting_goes_on_when_the_server_was_away(bus, said, server, kill, first, eventually):
    reading = bus.read(Stream.EXPERIENCES)
    waiting = asyncio.create_task(first(reading, 1))
    await eventually(lambda: bus.is_connected)
    await kill(server)
    await eventually(lambda: not bus.is_connected)
    await server.start()
    await bus.publish(said.group(0))
    assert [each.message for each in await waiting] == [said.group(0)]


async def test_trap_large_messages_are_not_dropped_by_a_slow_reader(bus, said, first):
    """The client drops what exceeds a subscription's pending limit; a pull is bounded in bytes instead."""
    text = "s" * 900 * KIB
    await bus.publish_all([said.group(ordinal, text) for ordinal in range(60)], window=8)
    assert await ordinals(bus.read(Stream.EXPERIENCES, follow=False)) == list(range(60))


async def test_a_reader_of_a_closed_bus_ends_with_an_error(join, said, first):
    bus = await join()
    await bus.declare()
    waiting = asyncio.create_task(first(bus.read(Stream.EXPERIENCES), 1))
    await asyncio.sleep(0)
    await bus.close()
    with pytest.raises(BusUnavailable):
        await waiting


async def test_garbage_after_the_newest_message_does_not_hide_it(bus, said, raw):
    stored = await bus.publish(said.group(1))
    for payload in (b"", b"\xff", b"\x81\xa1s\xa1x"):
        await raw.jetstream().publish(f"{ROOT}.experiences.mallory", payload)
    newest = await bus.last(Stream.EXPERIENCES)
    assert newest is not None
    assert (newest.sequence, newest.message) == (stored.sequence, said.group(1))


async def test_a_stream_of_garbage_alone_has_no_newest_message(bus, raw):
    await raw.jetstream().publish(f"{ROOT}.experiences.mallory", b"\xff")
    assert await bus.last(Stream.EXPERIENCES) is None


async def test_outlines_tell_place_size_and_time_without_bodies(bus, said) -> None:
    for ordinal in range(3):
        await bus.publish(said.group(ordinal, text="x" * 1000 * ordinal))
    found = [outline async for outline in bus.outlines(Stream.EXPERIENCES, start=2)]
    assert [outline.sequence for outline in found] == [2, 3]
    assert found[1].size_bytes - found[0].size_bytes == pytest.approx(1000, abs=20)
    assert found[0].headers["trinity-schema"] == "group_sampled"
    every = [outline async for outline in bus.outlines(Stream.EXPERIENCES)]
    assert sum(outline.size_bytes for outline in every) == (await bus.state(Stream.EXPERIENCES)).size_bytes
