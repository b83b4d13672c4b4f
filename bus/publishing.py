"""Publishing: an acknowledged message is stored, once. Retries carry the same id; publishers wait for room."""

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from nats.js import api

from bus.asking import Asker
from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import CLAIM_HEADER
from bus.errors import BusRefused, RevisionConflict
from bus.port import Stored
from bus.retrying import Patience
from bus.room import advice
from bus.subjects import MESSAGE_IDS, SUBJECTS, Stream, stream_name, token
from schemas.blobs import BlobClaimed
from schemas.codec import encode
from schemas.message import Message

log = structlog.get_logger()

T = TypeVar("T")


class Publisher:
    """Publishes the messages of one run."""

    def __init__(self, connection: Connection, run: str, blobs: Blobs) -> None:
        self._connection = connection
        self._run = run
        self._blobs = blobs
        self._asker = Asker(connection)

    async def publish(
        self,
        message: Message,
        deadline_s: float | None = None,
        after: int | None = None,
        message_id: str | None = None,
    ) -> Stored:
        stream, subject = self._address(message)
        headers = _headers(message)
        if message_id is not None:
            headers[api.Header.MSG_ID.value] = _safe(message_id)
        if after is not None:
            headers[api.Header.EXPECTED_LAST_SEQUENCE.value] = str(after)
        payload = encode(message)
        if len(payload) > min(self._connection.settings.spill_bytes, self._connection.largest_payload):
            payload, headers = await self._spilled(payload, headers, deadline_s)
        name = stream_name(self._run, stream)
        headers[api.Header.EXPECTED_STREAM.value] = name

        async def request() -> dict[str, Any]:
            return await self._asker.publish(subject, payload, headers)

        patience = Patience(self._connection, f"publish to {subject}", deadline_s, "publish_waiting")
        try:
            acked = await patience.until_answered(request, partial(advice, self._connection, name), limits_itself=True)
        except RevisionConflict:
            if after is None or not await self._is_at(name, after + 1, payload):
                raise
            return Stored(sequence=after + 1, is_duplicate=True)  # an earlier attempt, whose word was lost
        stored = Stored(sequence=acked["seq"], is_duplicate=bool(acked.get("duplicate")))
        if stored.is_duplicate and after is not None and not await self._is_at(name, stored.sequence, payload):
            another = f"{headers[api.Header.MSG_ID.value]}:{uuid.uuid4().hex}"
            log.warning("id_was_taken", subject=subject, sequence=stored.sequence, todo=f"publishing as {another}")
            return await self.publish(message, deadline_s, after, another)
        if stored.is_duplicate and CLAIM_HEADER in headers:
            await self._drop_if_unclaimed(name, stored.sequence, headers[CLAIM_HEADER])
        return stored

    async def publish_all(self, messages: Sequence[Message], window: int) -> list[Stored]:
        stored: dict[int, Stored] = {}
        numbered = iter(enumerate(messages))

        async def work() -> None:
            for number, message in numbered:
                stored[number] = await self.publish(message)

        await all_or_cancel([work() for _ in range(min(window, len(messages)))])
        return [stored[number] for number in range(len(messages))]

    def _address(self, message: Message) -> tuple[Stream, str]:
        if type(message) not in SUBJECTS:
            raise BusRefused(f"{message.schema_name} has no stream: put it into the key-value store")
        run = getattr(message, "run")  # noqa: B009 - every published message has one
        if run != self._run:
            raise BusRefused(f"{message.schema_name} of run {run!r} on the bus of run {self._run!r}")
        stream, subject = SUBJECTS[type(message)]
        return stream, subject(message)

    async def _spilled(
        self, payload: bytes, headers: dict[str, str], deadline_s: float | None
    ) -> tuple[bytes, dict[str, str]]:
        digest = await self._blobs.put(payload, deadline_s)
        claim = BlobClaimed(digest=digest, size_bytes=len(payload), chunks=self._blobs.chunks_of(len(payload)))
        return encode(claim), {**headers, CLAIM_HEADER: digest}

    async def _drop_if_unclaimed(self, name: str, sequence: int, digest: str) -> None:
        """The message that stood there already may have been another, with a blob of its own."""
        headers = await self._headers_at(name, sequence)
        if headers is None:
            return  # it has been read and purged: its blob goes with it
        if headers.get(CLAIM_HEADER) != digest:
            await self._blobs.drop(digest)

    async def _is_at(self, name: str, sequence: int, payload: bytes) -> bool:
        """Whether these bytes are stored there: garbage under the id of a message is not that message."""
        stored = await self._stored_at(name, sequence)
        return stored is not None and stored.data == payload

    async def _headers_at(self, name: str, sequence: int) -> dict[str, str] | None:
        """The headers of a stored message; None where there is none."""
        stored = await self._stored_at(name, sequence)
        return None if stored is None else stored.headers or {}

    async def _stored_at(self, name: str, sequence: int) -> api.RawStreamMsg | None:
        """A stored message; None where there is none."""

        async def request() -> api.RawStreamMsg:
            return await self._connection.jetstream.get_msg(name, seq=sequence)

        try:
            return await Patience(self._connection, f"look at {name} {sequence}").until_answered(request)
        except BusRefused:
            return None


async def all_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. The first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _headers(message: Message) -> dict[str, str]:
    """What the plain `nats` command shows, and the id of which the server keeps one.

    A message without an id of its own gets one for this call, so that its retries are not stored twice.
    """
    identify = MESSAGE_IDS.get(type(message))
    headers = {
        api.Header.MSG_ID.value: _safe(identify(message)) if identify else uuid.uuid4().hex,
        "trinity-schema": message.schema_name,
        "trinity-run": _safe(str(getattr(message, "run", ""))),
    }
    weights = getattr(message, "weights", None) or getattr(message, "floor", None)
    if weights is not None:
        headers["trinity-version"] = f"{weights.incarnation}.{weights.version}"
    task = getattr(message, "task", None)
    if task is not None:
        headers["trinity-task"] = _safe(task.task_id)
    return headers


def _safe(value: str) -> str:
    """A header value is one line of ASCII. Names that are not are told apart by their digest."""
    return value if value.isascii() and value.isprintable() and value == value.strip() else token(value)
