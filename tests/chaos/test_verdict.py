"""The independent reader finds what is wrong: each of its claims fails where it is not true."""

import asyncio
import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from acts import WEIGHTS, acts
from independent import Kept, Observed
from proxy import Proxy
from soak import Soak
from verdict import RULE, Terms, faults

TERMS = Terms(train_batch_size=2, staleness_bound=1, max_tokens=10)


def _kept(sequence: int, schema: str, body: dict[str, Any]) -> Kept:
    payload = bytes(msgpack.packb({"schema": schema, "version": 1, "body": body}))
    return Kept(sequence, "trinity.r.experiences.e", {}, payload, payload)


def _group(ordinal: int, version: int) -> dict[str, Any]:
    experience = {
        "position": 0,
        "tokens": np.full(4, ordinal, "<i4").tobytes(),
        "prompt_length": 2,
        "action_mask": b"\x01\x01",
        "logprobs": np.full(2, -1, "<f4").tobytes(),
        "token_versions": np.full(2, version, "<i4").tobytes(),
        "reward": 0.0,
    }
    about = {"run": "r", "task": {"ordinal": ordinal}, "repeat_times": 1, "explorer": "e", "incarnation": 1}
    return {**about, "experiences": [experience]}


def _given_up(ordinal: int) -> dict[str, Any]:
    about = {"run": "r", "task": {"ordinal": ordinal}, "repeat_times": 1, "explorer": "e"}
    return {**about, "attempts": 4, "error": "it would not"}


def _sound() -> Observed:
    """Two steps of two tasks, of which the last was abandoned; task 1 was answered twice, and garbage came between."""
    said = [_group(0, 0), _group(1, 0), _group(1, 0), _group(2, 1)]
    kept = [_kept(n + 1, "group_sampled", body) for n, body in enumerate(said)]
    kept += [Kept(5, "trinity.r.experiences.x", {}, b"garbage", b"garbage"), _kept(6, "task_abandoned", _given_up(3))]
    digest = hashlib.sha256(b"start").hexdigest()
    for ordinals in ((0, 1), (2,)):
        hasher = hashlib.sha256(digest.encode())
        for ordinal in ordinals:
            hasher.update(np.full(4, ordinal, "<i4").tobytes() + bytes(8))
        digest = hasher.hexdigest()
    task = bytes(msgpack.packb({"schema": "task_released", "version": 1, "body": {"task": {"ordinal": 3}}}))
    counts = {"trained": 3, "filtered": {"abandoned": 1}, "quarantined": 1, "duplicates": 1, "tokens_trained": 6}
    return Observed(
        run="r",
        experiences={each.sequence: each for each in kept},
        announced=[{"weights": {"incarnation": 1, "version": n}, "is_final": False} for n in range(3)],
        quarantined=[
            {"stream": "experiences", "sequence": 5, "payload": b"garbage"},
            {"stream": "tasks", "sequence": 4, "payload": task},
        ],
        release={"released": 4},
        ledger={
            "step": 2,
            "sequences": {"floor": 7, "above": []},
            "ordinals": {"floor": 4, "above": []},
            "abandoned": {"3": 1},
            "short_batches": [],
            "counts": counts,
        },
        weights={"step": 2, "digest": digest},
    )


def test_a_sound_run_has_no_faults() -> None:
    assert faults(_sound(), TERMS) == []


CHANGES: dict[str, Callable[[Observed], None]] = {
    "lost: released": lambda seen: seen.release.update(released=5),
    "never released": lambda seen: seen.release.update(released=3),
    "not in the quarantine": lambda seen: seen.quarantined.pop(),
    "cannot be used, and are not in the quarantine": lambda seen: seen.quarantined.pop(0),
    "are in the quarantine and can be used": lambda seen: seen.quarantined[0].update(sequence=2),
    "ordinals that only one of the two holds": lambda seen: seen.ledger["ordinals"].update(floor=1, above=[2, 3]),
    "ordinals listed below the floor or twice": lambda seen: seen.ledger["ordinals"].update(above=[2]),
    "says of trained": lambda seen: seen.ledger["counts"].update(trained=4),
    "says of duplicates": lambda seen: seen.ledger["counts"].update(duplicates=0),
    "says of step": lambda seen: seen.ledger.update(step=3),
    "says of first sequence": lambda seen: seen.experiences.pop(6),
    "says of abandoned": lambda seen: seen.ledger.update(abandoned={}),
    "each once, in order": lambda seen: seen.weights.update(digest="0" * 64),
    "was announced after": lambda seen: seen.announced.reverse(),
    "2 steps stale, where 1 are promised": lambda seen: None,
    "was never taken up": lambda seen: seen.experiences.update({7: _kept(7, "group_sampled", _group(9, 0))}),
    "the reader was too slow": lambda seen: seen.missed.append(1),
    "no checkpoint": lambda seen: seen.ledger.clear(),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_what_is_wrong_is_found(fault: str) -> None:
    seen, terms = copy.deepcopy(_sound()), TERMS
    CHANGES[fault](seen)
    if "stale" in fault:
        stale = {n: _group(n, -0) for n in (2,)}
        seen.experiences[4] = _kept(4, "group_sampled", stale[2])
        terms = Terms(train_batch_size=2, staleness_bound=0, max_tokens=10)
        fault = "1 steps stale, where 0 are promised"
    assert any(fault in words for words in faults(seen, terms)), faults(seen, terms)


FILTERED = Terms(train_batch_size=4, staleness_bound=1, max_tokens=10, least_reward=0.0, refill_batches=1)


def _answers(ordinal: int, *rewards: float) -> dict[str, Any]:
    group = _group(ordinal, 0)
    (experience,) = group["experiences"]
    several = [{**experience, "position": place, "reward": reward} for place, reward in enumerate(rewards)]
    return {**group, "repeat_times": len(rewards), "experiences": several}


def _digest(*ordinals: int) -> str:
    hasher = hashlib.sha256(hashlib.sha256(b"start").hexdigest().encode())
    for ordinal in ordinals:
        hasher.update(np.full(4, ordinal, "<i4").tobytes() + bytes(8))
    return hasher.hexdigest()


def _sound_and_filtered() -> Observed:
    """One step: of task 0 one answer is filtered, of task 1 both, and tasks 2 and 3 make up for them."""
    said = [_answers(0, 1.0, -1.0), _answers(1, -1.0, -1.0), _answers(2, 1.0, 1.0), _answers(3, 0.0, 0.0)]
    counts = {"trained": 5, "filtered": {RULE: 3}, "quarantined": 0, "duplicates": 0, "tokens_trained": 10}
    return Observed(
        run="r",
        experiences={n: _kept(n, "group_sampled", body) for n, body in enumerate(said, start=1)},
        announced=[{"weights": {"incarnation": 1, "version": n}, "is_final": False} for n in range(2)],
        quarantined=[],
        release={"released": 4},
        ledger={
            "step": 1,
            "sequences": {"floor": 5, "above": []},
            "ordinals": {"floor": 4, "above": []},
            "abandoned": {},
            "short_batches": [],
            "counts": counts,
        },
        weights={"step": 1, "digest": _digest(0, 2, 2, 3, 3)},
    )


def test_a_sound_run_that_filters_has_no_faults() -> None:
    assert faults(_sound_and_filtered(), FILTERED) == []


FILTERED_CHANGES: dict[str, Callable[[Observed], None]] = {
    "says of filtered": lambda seen: seen.ledger["counts"].update(filtered={"abandoned": 3}),
    "says of trained": lambda seen: seen.ledger["counts"].update(trained=8),
    "each once, in order": lambda seen: seen.weights.update(digest=_digest(0, 0, 2, 2, 3, 3)),
    "ordinals that only one of the two holds": lambda seen: seen.ledger["ordinals"].update(floor=1, above=[2, 3]),
}


@pytest.mark.parametrize("fault", FILTERED_CHANGES)
def test_what_is_wrong_with_a_run_that_filters_is_found(fault: str) -> None:
    seen = copy.deepcopy(_sound_and_filtered())
    FILTERED_CHANGES[fault](seen)
    assert any(fault in words for words in faults(seen, FILTERED)), faults(seen, FILTERED)


def test_batches_that_count_what_was_filtered_are_found() -> None:
    found = faults(_sound_and_filtered(), replace(FILTERED, refill_batches=0))
    assert "the ledger says of step: 1, the stream makes 2" in found


def test_the_acts_are_a_function_of_the_seed_and_hold_every_kind() -> None:
    assert acts(7, 25) == acts(7, 25) != acts(8, 25)
    assert {act.kind for act in acts(7, len(WEIGHTS))} == set(WEIGHTS)
    assert all(hasattr(Soak, f"_{kind}") for kind in WEIGHTS)


async def test_a_partition_holds_bytes_back_and_a_cut_closes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    writer.write(b"one\n")
    assert await reader.readline() == b"one\n"
    proxy.partition()
    writer.write(b"two\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.2)
    proxy.heal()
    assert await reader.readline() == b"two\n"
    await proxy.cut()
    assert await reader.read() == b""
    writer.close()
    await proxy.stop()
    server.close()
