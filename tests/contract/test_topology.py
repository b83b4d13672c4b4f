"""Declaring is idempotent, changes what may be changed, and says what may not."""

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import api

from bus.errors import BusRefused
from bus.settings import GIB, KIB
from bus.subjects import Stream, bucket_name, stream_name, stream_subjects, task_subject, token

RUN = "project/name"


async def test_declaring_twice_changes_nothing(bus, join, said):
    await bus.publish(said.group(0))
    await bus.declare()
    other = await join()
    await asyncio.gather(other.declare(), bus.declare())
    assert (await bus.state(Stream.EXPERIENCES)).messages == 1
    assert (await bus.state(Stream.EXPERIENCES)).limit_bytes == 2 * GIB


async def test_a_changed_limit_is_adopted_and_nothing_is_lost(bus, join, said, settings):
    await bus.publish_all([said.group(ordinal, "x" * 50 * KIB) for ordinal in range(6)])
    for limit in (100 * KIB, GIB):
        changed = await join(dataclasses.replace(settings, max_experience_bytes=limit, weights_kept=7))
        await changed.declare()
        state = await bus.state(Stream.EXPERIENCES)
        assert (state.messages, state.limit_bytes) == (6, limit)


async def test_a_stream_that_cannot_be_changed_is_a_clear_refusal(join, raw):
    await raw.jetstream().add_stream(
        name=stream_name(RUN, Stream.EXPERIENCES),
        subjects=stream_subjects(RUN, Stream.EXPERIENCES),
        retention=api.RetentionPolicy.WORK_QUEUE,
    )
    with pytest.raises(BusRefused, match="has another form"):
        await (await join()).declare()


async def test_a_limit_beyond_the_disk_is_a_clear_refusal(join, settings):
    bus = await join(dataclasses.replace(settings, max_experience_bytes=1 << 60))
    with pytest.raises(BusRefused, match=r"bus\.max_experience_bytes"):
        await bus.declare()


async def test_trap_streams_that_matter_refuse_new_messages_rather_than_drop_old_ones(bus, raw):
    for stream in (Stream.TASKS, Stream.EXPERIENCES, Stream.QUARANTINE, Stream.BLOBS):
        info = await raw.jetstream().stream_info(stream_name(RUN, stream))
        assert info.config.discard == "new"


async def test_declaring_waits_for_a_server_that_is_away(join, server, kill):
    bus = await join()
    await kill(server)
    declaring = asyncio.create_task(bus.declare())
    await server.start()
    await asyncio.wait_for(declaring, 10.0)
    assert (await bus.state(Stream.TASKS)).messages == 0


async def test_two_runs_on_one_server_do_not_hear_each_other(bus, join, said):
    other = await join(run="project.name")
    await other.declare()
    await other.publish(said.group(0, run="project.name"))
    await bus.publish(said.group(1))
    assert [each.message.task.ordinal async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [1]
    assert [each.message.task.ordinal async for each in other.read(Stream.EXPERIENCES, follow=False)] == [0]


@pytest.mark.parametrize("run", ["ü", "a b", "a.b", "*", ">", "a>b", "\x00", "x" * 300, "Ünï/cödé 実行"])
async def test_a_run_of_any_name_works(join, said, run):
    bus = await join(run=run)
    await bus.declare()
    await bus.publish(said.group(3, run=run, explorer=run))
    assert [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [
        said.group(3, run=run, explorer=run)
    ]


NAMES = st.text(min_size=0, max_size=30) | st.sampled_from(["a.b", "a/b", "a_b", "a-b", "a b", "A_B", "", "*", ">"])


@given(NAMES, NAMES)
def test_tokens_of_different_names_never_collide(left, right):
    assert (token(left) == token(right)) == (left == right)


@given(NAMES)
def test_a_token_is_safe_in_subjects_and_stream_names(name):
    safe = token(name)
    assert safe
    assert not set(safe) - set("-_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    assert len(task_subject(name, name).split(".")) == 4
    assert "." not in stream_name(name, Stream.TASKS) + bucket_name(name)
