"""The key-value store: values that expire, compare-and-set, and keys of any spelling."""

import asyncio

import nats.js.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import BusRefused, RevisionConflict
from bus.keyvalue import plain_key, safe_key
from bus.settings import MIB
from bus.subjects import bucket_name
from schemas.state import RunDeclared

RUN = "project/name"


async def test_a_value_put_is_got_with_its_revision(bus, said):
    assert await bus.get("a.b") is None
    revision = await bus.put("a.b", said.held("me"))
    found = await bus.get("a.b")
    assert (found.key, found.message, found.revision) == ("a.b", said.held("me"), revision)
    assert await bus.put("a.b", said.held("you")) > revision
    assert (await bus.get("a.b")).message == said.held("you")


async def test_a_swap_replaces_only_the_revision_it_names(bus, said):
    created = await bus.swap("k", said.held("a"), 0)
    with pytest.raises(RevisionConflict):
        await bus.swap("k", said.held("b"), 0)
    with pytest.raises(RevisionConflict):
        await bus.swap("k", said.held("b"), created + 7)
    swapped = await bus.swap("k", said.held("b"), created)
    with pytest.raises(RevisionConflict):
        await bus.swap("k", said.held("c"), created)
    assert (await bus.get("k")).revision == swapped
    assert (await bus.get("k")).message == said.held("b")


async def test_of_many_who_create_a_key_one_succeeds(bus, said):
    tries = [bus.swap("k", said.held(str(number)), 0) for number in range(10)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(outcome) is int for outcome in outcomes) == [False] * 9 + [True]
    assert all(isinstance(outcome, (int, RevisionConflict)) for outcome in outcomes)


async def test_a_deleted_key_is_absent_and_may_be_created_at_once(bus, said):
    await bus.put("k", said.held())
    await bus.delete("k")
    assert await bus.get("k") is None
    assert await bus.entries("") == []
    await bus.swap("k", said.held("again"), 0)
    assert (await bus.get("k")).message == said.held("again")
    await bus.delete("never there")


async def test_a_value_vanishes_after_its_time_to_live(bus, said, eventually):
    await bus.put("short", said.held(), ttl_s=0.5)
    await bus.put("long", said.held())
    assert await bus.get("short") is not None
    await eventually(lambda: absent(bus, "short"))
    assert [entry.key for entry in await bus.entries("")] == ["long"]


async def absent(bus, key: str) -> bool:
    return await bus.get(key) is None


async def test_trap_a_renewal_under_compare_and_set_keeps_the_time_to_live(bus, said, eventually):
    """The client's own update carries no time to live: a lease renewed by it would never expire."""
    revision = await bus.swap("lease", said.held(), 0, ttl_s=1)
    for _ in range(6):
        await asyncio.sleep(0.3)
        revision = await bus.swap("lease", said.held(), revision, ttl_s=1)
    assert await bus.get("lease") is not None
    await eventually(lambda: absent(bus, "lease"), 5.0)


async def test_trap_the_marker_of_a_deleted_key_does_not_stop_its_creation(bus, raw, said):
    """While a marker stands, a plain create fails, and a plain get has no value."""
    await bus.put("k", said.held())
    await bus.delete("k")
    marker = await raw.jetstream().get_msg(f"KV_{bucket_name(RUN)}", subject=f"$KV.{bucket_name(RUN)}.k")
    assert marker.headers["KV-Operation"] == "DEL"
    await bus.swap("k", said.held("next"), 0, ttl_s=5)
    assert (await bus.get("k")).message == said.held("next")
    with pytest.raises(RevisionConflict):
        await bus.swap("k", said.held("late"), 0)


@pytest.mark.parametrize("extent", ["all", "sub"])
async def test_trap_writing_one_key_cannot_empty_the_store(bus, raw, said, extent):
    """A roll-up needs no more than the right to write one key, and takes all others with it."""
    await bus.put("other", said.held())
    with pytest.raises(nats.js.errors.ServerError):
        await raw.jetstream().publish(f"$KV.{bucket_name(RUN)}.mine", b"", headers={"Nats-Rollup": extent})
    assert await bus.get("other") is not None


async def test_a_fraction_of_a_second_to_live_is_rounded_up(bus, said):
    await bus.put("k", said.held(), ttl_s=0.01)
    assert await bus.get("k") is not None


async def test_entries_are_those_with_the_prefix_by_key(bus, said):
    for key in ("members.explorer.b", "members.explorer.a", "members.trainer.t", "membership", "progress"):
        await bus.put(key, said.held(key))
    assert [entry.key for entry in await bus.entries("members.")] == [
        "members.explorer.a",
        "members.explorer.b",
        "members.trainer.t",
    ]
    assert [entry.key for entry in await bus.entries("members.explorer.")] == [
        "members.explorer.a",
        "members.explorer.b",
    ]
    assert [entry.key for entry in await bus.entries("member")][-1] == "membership"
    assert len(await bus.entries("")) == 5
    assert [entry.message for entry in await bus.entries("progress")] == [said.held("progress")]
    assert await bus.entries("nothing.") == []


async def test_keys_of_any_spelling_stay_apart(bus, said):
    keys = ["a b", "a=20b", "a*", "a>", ".", "..", "a.", ".a", "ü/é", "members.host:8000", "$KV.x"]
    for key in keys:
        await bus.put(key, said.held(key))
    for key in keys:
        assert (await bus.get(key)).message == said.held(key)
    assert sorted(entry.key for entry in await bus.entries("")) == sorted(keys)


@given(st.text(min_size=1, max_size=40))
def test_a_safe_key_gives_the_key_back(key):
    safe = safe_key(key)
    assert plain_key(safe) == key
    assert not set(safe) - set("-_/.=ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    assert all(safe.split("."))


async def test_bytes_that_are_no_message_count_as_absent_and_are_replaced(bus, raw, said):
    await raw.jetstream().publish(f"$KV.{bucket_name(RUN)}.k", b"garbage")
    assert await bus.get("k") is None
    assert await bus.entries("") == []
    await bus.swap("k", said.held(), 0)
    assert (await bus.get("k")).message == said.held()


async def test_a_value_too_large_for_the_store_is_refused(bus):
    declared = RunDeclared(run=RUN, run_dir="d", config={"text": "x" * 9 * MIB}, declared_at=0.0)
    with pytest.raises(BusRefused, match="too large"):
        await bus.put("run", declared)


async def test_trap_the_store_answers_at_once_after_the_server_was_away(bus, said, server, kill):
    """A watcher would be deaf for some 20 s after a restart; reads are direct."""
    revision = await bus.put("k", said.held())
    await kill(server)
    getting = asyncio.create_task(bus.get("k"))
    swapping = asyncio.create_task(bus.swap("k", said.held("next"), revision))
    await server.start()
    async with asyncio.timeout(5.0):
        assert (await getting).message in (said.held(), said.held("next"))
        await swapping
        assert [entry.message for entry in await bus.entries("k")] == [said.held("next")]
