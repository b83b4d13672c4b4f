"""Bytes that no service may choke on: not msgpack, not ours, and almost ours."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
from independent import body_of


def _packed(schema: str, body: Any, version: object = 1) -> bytes:
    return bytes(msgpack.packb({"schema": schema, "version": version, "body": body}, use_bin_type=True))


def shapeless(draw: random.Random) -> Iterator[bytes]:
    """What is garbage on every subject."""
    yield b""
    yield draw.randbytes(draw.randint(1, 300))
    yield b"\x81" * 5000  # maps in maps in maps
    yield b"\xdd\xff\xff\xff\xff"  # an array that says it has four billion elements
    yield bytes(msgpack.packb([1, 2, 3]))
    yield _packed("group_sampled", {}, version=1)
    yield _packed("group_sampled", {}, version=99)
    yield _packed("no_such_schema", {"run": "x"})
    yield _packed("metrics_reported", None)
    yield _packed("blob_claimed", {"digest": "0" * 64, "size_bytes": 5, "chunks": 1})


def _first(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["experiences"][0]
    return found


def _with_nan(body: dict[str, Any]) -> None:
    logprobs = np.frombuffer(_first(body)["logprobs"], "<f4").copy()
    logprobs[0] = np.nan
    _first(body)["logprobs"] = logprobs.tobytes()


def _cut_short(body: dict[str, Any]) -> None:
    _first(body)["logprobs"] = _first(body)["logprobs"][:-4]


def _from_the_future(body: dict[str, Any]) -> None:
    versions = np.frombuffer(_first(body)["token_versions"], "<i4") + 10_000
    _first(body)["token_versions"] = versions.astype("<i4").tobytes()


def _likely(body: dict[str, Any]) -> None:
    _first(body)["logprobs"] = np.full(len(_first(body)["logprobs"]) // 4, 3.0, "<f4").tobytes()


def _of_another_run(body: dict[str, Any]) -> None:
    body["run"] = "another/run"


def _too_long(body: dict[str, Any]) -> None:
    _first(body)["tokens"] = np.ones(500, "<i4").tobytes()
    for name, width in (("logprobs", "<f4"), ("token_versions", "<i4"), ("action_mask", "|u1")):
        _first(body)[name] = np.zeros(500 - _first(body)["prompt_length"], width).tobytes()


def _without_reward(body: dict[str, Any]) -> None:
    _first(body)["reward"] = float("nan")


def _one_too_many(body: dict[str, Any]) -> None:
    _first(body)["position"] = body["repeat_times"]


def _with_a_stranger(body: dict[str, Any]) -> None:
    body["surprise"] = 1


SPOILINGS: tuple[Callable[[dict[str, Any]], None], ...] = (
    _with_nan,
    _cut_short,
    _from_the_future,
    _likely,
    _of_another_run,
    _too_long,
    _without_reward,
    _one_too_many,
    _with_a_stranger,
)


def spoilt(payload: bytes, ordinal: int) -> Iterator[bytes]:
    """A real group, spoilt in every way that there is, as if it answered the task `ordinal`."""
    body = body_of(payload, "group_sampled")
    if body is None:
        return
    body["task"]["ordinal"] = ordinal
    yield payload[: len(payload) // 2]
    for spoil in SPOILINGS:
        changed = copy.deepcopy(body)
        spoil(changed)
        yield _packed("group_sampled", changed)
