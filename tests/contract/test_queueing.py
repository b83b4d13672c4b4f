"""A task is leased to one explorer at a time, the oldest first, until it is answered."""

import asyncio
import dataclasses
import hashlib

import pytest

from bus.port import LeaseTerms
from bus.subjects import Stream, stream_name

RUN = "project/name"
ROOT = "trinity.project_name-" + hashlib.sha256(RUN.encode()).hexdigest()[:8]


def ordinals(deliveries) -> list[int]:
    return [delivery.message.task.ordinal for delivery in deliveries]


async def test_tasks_come_oldest_first(bus, said):
    await bus.publish_all([said.task(ordinal) for ordinal in range(10)])
    queue = await bus.queue()
    assert ordinals(await queue.pull(4, 5.0)) == [0, 1, 2, 3]
    assert ordinals(await queue.pull(100, 5.0)) == [4, 5, 6, 7, 8, 9]


async def test_tasks_of_several_tasksets_come_oldest_first(bus, said):
    await bus.publish_all([said.task(ordinal, taskset=f"set {ordinal % 3}") for ordinal in range(12)], window=1)
    queue = await bus.queue()
    assert ordinals(await queue.pull(7, 5.0)) == [0, 1, 2, 3, 4, 5, 6]
    assert ordinals(await queue.pull(7, 5.0)) == [7, 8, 9, 10, 11]


async def test_an_empty_queue_gives_an_empty_list_in_time(bus):
    queue = await bus.queue()
    async with asyncio.timeout(2.0):
        assert await queue.pull(4, 0.2) == []
        assert await queue.pull(4, 0.0) == []
        assert await queue.pull(0, 1.0) == []


async def test_a_waiting_pull_gets_a_task_that_comes_later(bus, said):
    queue = await bus.queue()
    waiting = asyncio.create_task(queue.pull(4, 10.0))
    await bus.publish(said.task(0))
    assert ordinals(await waiting) == [0]
    waiting = asyncio.create_task(queue.pull(4, 10.0))
    await bus.publish(said.task(1))
    assert ordinals(await waiting) == [1]


async def test_a_taskset_that_appears_later_is_found(bus, said):
    queue = await bus.queue()
    await bus.publish(said.task(0, taskset="first"))
    (delivery,) = await queue.pull(1, 5.0)
    await delivery.ack()
    await bus.publish(said.task(1, taskset="second"))
    assert ordinals(await queue.pull(1, 10.0)) == [1]


async def test_an_acknowledged_task_leaves_the_queue(bus, said):
    await bus.publish(said.task(0))
    (delivery,) = await (await bus.queue()).pull(1, 5.0)
    state = await bus.state(Stream.TASKS)
    assert (state.messages, state.pending, state.in_hand) == (1, 0, 1)
    await delivery.ack()
    state = await bus.state(Stream.TASKS)
    assert (state.messages, state.pending, state.in_hand) == (0, 0, 0)


async def test_a_task_comes_again_after_its_lease_and_says_which_attempt_it_is(bus, said):
    await bus.publish(said.task(0))
    queue = await bus.queue()
    for attempt in (1, 2, 3):
        (delivery,) = await queue.pull(1, 10.0)
        assert (delivery.message, delivery.attempt) == (said.task(0), attempt)


async def test_a_task_handed_back_comes_again_at_once(join, bus, said, settings):
    patient = await join(dataclasses.replace(settings, terms=LeaseTerms(lease_s=600.0)))
    await bus.publish(said.task(0))
    queue = await patient.queue()
    (delivery,) = await queue.pull(1, 5.0)
    await delivery.nak()
    (again,) = await queue.pull(1, 5.0)
    assert again.attempt == 2


async def test_a_task_handed_back_with_a_delay_comes_after_it(bus, said):
    await bus.publish(said.task(0))
    queue = await bus.queue()
    (delivery,) = await queue.pull(1, 5.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await delivery.nak(delay_s=0.5)
    (again,) = await queue.pull(1, 10.0)
    assert again.attempt == 2
    assert 0.45 <= loop.time() - began < 3.0


async def test_a_sign_of_life_keeps_the_lease(bus, said):
    await bus.publish(said.task(0))
    queue, other = await bus.queue(), await bus.queue()
    (delivery,) = await queue.pull(1, 5.0)
    loop = asyncio.get_running_loop()
    end = loop.time() + 2.5
    while loop.time() < end:
        await delivery.in_progress()
        assert await other.pull(1, 0.3) == []
    (again,) = await other.pull(1, 10.0)
    assert again.attempt == 2


async def test_two_explorers_share_the_queue_and_no_task_goes_to_both(bus, join, said):
    await bus.publish_all([said.task(ordinal) for ordinal in range(40)])
    members = [await join(), await join()]

    async def work(member) -> list[int]:
        queue, done = await member.queue(), []
        while batch := await queue.pull(3, 0.3):
            for delivery in batch:
                await delivery.ack()
            done += ordinals(batch)
        return done

    mine, yours = await asyncio.gather(*(work(member) for member in members))
    assert sorted(mine + yours) == list(range(40))
    assert mine
    assert yours
    assert mine == sorted(mine)


async def test_an_explorer_of_some_tasksets_gets_only_those(bus, said):
    await bus.publish_all([said.task(ordinal, taskset="ab"[ordinal % 2]) for ordinal in range(6)], window=1)
    only_b, every = await bus.queue(["b"]), await bus.queue()
    assert ordinals(await only_b.pull(2, 5.0)) == [1, 3]
    assert ordinals(await every.pull(10, 5.0)) == [0, 2, 4, 5]


async def test_trap_the_consumers_of_a_work_queue_do_not_overlap(bus, join, said):
    """Error 10100: an unfiltered consumer beside a filtered one would be refused."""
    await bus.publish(said.task(0, taskset="a"))
    other = await join()
    for tasksets in (("a",), (), ("a", "b"), ()):
        await (await other.queue(tasksets)).pull(1, 0.1)


async def test_trap_no_task_is_stuck_however_often_it_is_delivered(bus, said):
    """After a consumer's own max_deliver a message would stay in the stream, never delivered again."""
    await bus.publish(said.task(0))
    queue = await bus.queue()
    for attempt in range(1, 9):
        (delivery,) = await queue.pull(1, 5.0)
        assert delivery.attempt == attempt
        await delivery.nak()


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x83\xa6schema\xa1x\xa7version\x01\xa4body\x80"])
async def test_an_undecodable_task_is_quarantined_and_never_delivered(bus, raw, said, payload):
    await raw.jetstream().publish(f"{ROOT}.tasks.train", payload)
    await bus.publish(said.task(0))
    queue = await bus.queue()
    assert ordinals(await queue.pull(5, 5.0)) == [0]
    assert (await bus.state(Stream.TASKS)).messages == 1
    kept = (await bus.last(Stream.QUARANTINE)).message
    assert (kept.stream, kept.sequence, kept.payload, kept.attempts) == ("tasks", 1, payload, 1)


async def test_trap_a_cancelled_pull_leaves_nothing_waiting_on_the_server(bus, join, said, settings):
    """The client's own fetch would let a lingering request take the next task, and lose it for a whole lease."""
    patient = await join(dataclasses.replace(settings, terms=LeaseTerms(lease_s=600.0)))
    queue = await patient.queue(["train"])
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await queue.pull(1, 60.0)
    await bus.publish(said.task(0))
    (delivery,) = await queue.pull(1, 5.0)
    assert delivery.attempt == 1


async def test_pulling_and_answering_go_on_when_the_server_was_away(bus, said, server, kill):
    await bus.publish_all([said.task(ordinal) for ordinal in range(4)])
    queue = await bus.queue()
    (held,) = await queue.pull(1, 5.0)
    await kill(server)
    acking = asyncio.create_task(held.ack())
    pulling = asyncio.create_task(queue.pull(10, 20.0))
    await server.start()
    await asyncio.gather(acking, return_exceptions=True)
    done = {delivery.message.task.ordinal for delivery in await pulling}
    for delivery in await queue.pull(10, 3.0):
        done.add(delivery.message.task.ordinal)
    assert done >= {1, 2, 3}


async def test_a_queue_goes_on_when_its_consumer_is_deleted(bus, raw, said):
    await bus.publish(said.task(0))
    queue = await bus.queue()
    (delivery,) = await queue.pull(1, 5.0)
    await delivery.ack()
    await raw.jetstream().delete_consumer(stream_name(RUN, Stream.TASKS), "explorers-train")
    await bus.publish(said.task(1))
    assert ordinals(await queue.pull(1, 10.0)) == [1]
