"""An independent reader of a run: nats-py, msgpack and the documented formats, and no code of the system under test.

Invariant: everything here follows from docs/bus.md and docs/guarantees.md. What it computes is never told to the run.
"""

import asyncio
import contextlib
import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import nats
import nats.errors
import nats.js.errors

_LOOK_S = 0.05
_ATTEMPTS = 100
_PASSING = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


def token(name: str) -> str:
    """A run's name as one token of a subject, by docs/bus.md."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if name and safe == name and len(name) <= 80 and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    return f"{safe[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def body_of(payload: bytes, *schemas: str) -> dict[str, Any] | None:
    """The body of an envelope of version 1 of one of `schemas`; None where the bytes are nothing of that kind."""
    try:
        envelope = msgpack.unpackb(payload, raw=False)
    except Exception:  # noqa: BLE001 - the unpacker's own errors share no base class
        return None
    if not isinstance(envelope, dict) or set(envelope) != {"schema", "version", "body"}:
        return None
    is_known = envelope["schema"] in schemas and envelope["version"] == 1
    return envelope["body"] if is_known and isinstance(envelope["body"], dict) else None


@dataclass(frozen=True)
class Kept:
    """A message as the server has stored it, with the chunks of its claim put together."""

    sequence: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    whole: bytes


@dataclass
class Observed:
    """All that a run has left: its experience stream from the first message on, its announcements, its quarantine, its
    release progress, and the newest checkpoint. `missed` are sequences that were freed before they could be read."""

    run: str
    experiences: dict[int, Kept] = field(default_factory=dict)
    missed: list[int] = field(default_factory=list)
    announced: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    release: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> set[int]:
        """Sequences of the experience stream that lie in the quarantine."""
        return {each["sequence"] for each in self.quarantined if each["stream"] == "experiences"}

    def answers(self) -> list[bytes]:
        """The payloads of the groups that have come so far, in order, as far as they look like groups."""
        bodies = [(each.whole, body_of(each.whole, "group_sampled")) for each in self.experiences.values()]
        return [whole for whole, body in bodies if body and "task" in body and "experiences" in body]

    def abandoned_in_quarantine(self) -> set[int]:
        """Ordinals of the tasks that lie in the quarantine."""
        bodies = [body_of(each["payload"], "task_released") for each in self.quarantined if each["stream"] == "tasks"]
        return {body["task"]["ordinal"] for body in bodies if body is not None}


class IndependentReader:
    """Follows the experience stream of a run, to have seen what is freed later, and reads the rest at the end."""

    def __init__(self, url: str, run: str) -> None:
        self._url = url
        self._token = token(run)
        self._position = 1
        self._reading = asyncio.Lock()
        self._client: Any = None
        self._following: asyncio.Task[None] | None = None
        self._is_over = False
        self.observed = Observed(run)

    async def start(self) -> None:
        async def quiet(error: Exception) -> None:
            """The server is killed on purpose here: what fails is asked again."""

        self._client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet, ping_interval=2
        )
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        self._is_over = True  # the client may swallow a cancellation
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def stream(self, name: str) -> str:
        return f"trinity_{self._token}_{name}"

    def subject(self, *rest: str) -> str:
        return ".".join(("trinity", self._token, *rest))

    def key(self, name: str) -> str:
        """The subject of a key of the run's store."""
        return f"$KV.trinity_{self._token}.{name}"

    async def store(
        self, subject: str, payload: bytes, message_id: str | None = None, like: dict[str, str] | None = None
    ) -> int | None:
        """Publish whatever bytes, with headers `like` those of another message; the sequence at which they are stored.
        Repeated while the server is away; None where it has had no room for them for a while."""
        kept = {name: value for name, value in (like or {}).items() if name.startswith("trinity-")}
        headers = {**kept, "Nats-Msg-Id": message_id} if message_id else kept
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(*_PASSING):
                acked = await self._client.jetstream().publish(subject, payload, headers=headers, timeout=2)
                return int(acked.seq)
            await asyncio.sleep(_LOOK_S)
        return None

    async def value(self, key: str, schema: str) -> dict[str, Any] | None:
        """The value of a key of the run's store, where it can be read."""
        while True:
            try:
                found = await self._client.jetstream().get_msg(f"KV_trinity_{self._token}", subject=self.key(key))
                return body_of(found.data or b"", schema)
            except nats.js.errors.NotFoundError:
                return None
            except _PASSING:
                await asyncio.sleep(_LOOK_S)

    async def progress(self) -> tuple[int, int, str]:
        """How far the run is: the last sequence of its experience stream, its trainer's steps, its phase."""
        train, release = await self.value("train", "train_progress"), await self.value("release", "release_progress")
        return self._position - 1, (train or {}).get("step", 0), (release or {}).get("phase", "")

    async def finish(self, run_dir: Path) -> Observed:
        """Everything, once the run is over."""
        await self.catch_up()
        self.observed.announced = await self._bodies("weights", "weights_announced")
        self.observed.quarantined = await self._bodies("quarantine", "quarantined")
        self.observed.release = await self.value("release", "release_progress") or {}
        directory = newest_checkpoint(run_dir)
        if directory is not None:
            self.observed.ledger = json.loads((directory / "ledger.json").read_text())
            self.observed.weights = json.loads((directory / "actor" / "fake_state.json").read_text())
        return self.observed

    async def _bodies(self, stream: str, schema: str) -> list[dict[str, Any]]:
        """The messages of one schema that a stream holds now, in order."""
        jetstream, found = self._client.jetstream(), []
        state = (await jetstream.stream_info(self.stream(stream))).state
        for sequence in range(max(1, state.first_seq), state.last_seq + 1):
            stored = await jetstream.get_msg(self.stream(stream), seq=sequence)
            found.append(body_of(await self._put_together(stored.data or b""), schema))
        return [body for body in found if body is not None]

    async def _follow(self) -> None:
        while not self._is_over:
            with contextlib.suppress(*_PASSING):
                await self.catch_up()
            await asyncio.sleep(_LOOK_S)

    async def catch_up(self) -> None:
        """Take in all of the experience stream that is there."""
        async with self._reading:
            await self._read_on()

    async def _read_on(self) -> None:
        name = self.stream("experiences")
        last = (await self._client.jetstream().stream_info(name)).state.last_seq
        while self._position <= last:
            try:
                stored = await self._client.jetstream().get_msg(name, seq=self._position)
            except nats.js.errors.NotFoundError:
                self.observed.missed.append(self._position)
            else:
                headers, payload = dict(stored.headers or {}), stored.data or b""
                whole = await self._put_together(payload)
                kept = Kept(self._position, stored.subject, headers, payload, whole)
                self.observed.experiences[self._position] = kept
            self._position += 1

    async def _put_together(self, payload: bytes) -> bytes:
        """The bytes that a claim stands for; of another message, its own. A claim on nothing stands for nothing."""
        claim = body_of(payload, "blob_claimed")
        if claim is None:
            return payload
        chunks = []
        for number in range(claim["chunks"] if isinstance(claim.get("chunks"), int) else 0):
            subject = self.subject("blobs", str(claim.get("digest")), str(number))
            try:
                found = await self._client.jetstream().get_msg(self.stream("blobs"), subject=subject)
            except nats.js.errors.NotFoundError:
                return b""
            chunks.append(found.data or b"")
        return b"".join(chunks)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint in force of a run that is over: the last one of its last trainer."""
    found: dict[tuple[int, int], Path] = defaultdict()
    for directory in run_dir.glob("global_step_*"):
        if (directory / "ledger.json").is_file():
            ledger = json.loads((directory / "ledger.json").read_text())
            found[ledger["incarnation"], ledger["step"]] = directory
    return found[max(found)] if found else None
