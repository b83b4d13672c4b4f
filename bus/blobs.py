"""Bytes of any size as chunks of a stream, named by their SHA-256 digest.

A chunk is stored once under its subject, by compare-and-set rather than by message id: the server remembers the id of
a purged message and would swallow the same bytes stored anew.
"""

import asyncio
import contextlib
import hashlib
import math
import uuid
from functools import partial

import nats.errors
import nats.js.errors
import structlog
from nats.js import api

from bus.connection import Connection
from bus.errors import BlobMissing, BusRefused, RevisionConflict
from bus.pulling import PullEnd, pull
from bus.retrying import Patience
from bus.room import advice
from bus.settings import HEADER_ROOM_BYTES, MIB
from bus.subjects import Stream, chunk_subject, stream_name

log = structlog.get_logger()

CHUNK_BYTES = MIB - HEADER_ROOM_BYTES
WINDOW = 8
_LARGE_BYTES = 4 * MIB


class Blobs:
    """The blob stream of one run."""

    def __init__(self, connection: Connection, run: str) -> None:
        self._connection = connection
        self._run = run
        self._stream = stream_name(run, Stream.BLOBS)

    @property
    def chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, self._connection.largest_payload)

    def chunks_of(self, size_bytes: int) -> int:
        return max(1, math.ceil(size_bytes / self.chunk_bytes))

    async def put(self, payload: bytes, deadline_s: float | None = None) -> str:
        """Store `payload`; the digest that names it."""
        digest = await _digest(payload)
        gate = asyncio.Semaphore(WINDOW)
        size, count = self.chunk_bytes, self.chunks_of(len(payload))

        async def store(number: int) -> None:
            async with gate:
                await self._store(digest, number, count, payload[number * size : (number + 1) * size], deadline_s)

        tasks = [asyncio.ensure_future(store(number)) for number in range(count)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return digest

    async def get(self, digest: str) -> bytes:
        """The bytes named `digest`.

        Raises:
            BlobMissing: chunks are absent, or do not match the digest.
        """
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise BlobMissing(f"{digest[:80]!r} is not a SHA-256 digest")
        chunks, count = await self._chunks(digest)
        if len(chunks) != count or not chunks:
            raise BlobMissing(f"blob {digest}: {len(chunks)} of {count or 'its'} chunks are there")
        payload = b"".join(chunks[number] for number in sorted(chunks))
        if await _digest(payload) != digest:
            raise BlobMissing(f"blob {digest}: its {len(payload)} bytes have another digest")
        return payload

    async def drop(self, digest: str) -> None:
        """Free what is named `digest`. Where the role may not, it stays, and only takes room."""
        subject = chunk_subject(self._run, digest, "*")

        async def request() -> bool:
            return await self._connection.jetstream.purge_stream(self._stream, subject=subject)

        try:
            await Patience(self._connection, f"drop of blob {digest[:12]}").until_answered(request)
        except BusRefused as error:
            log.warning("blob_left", digest=digest, reason=str(error))

    async def _store(self, digest: str, number: int, count: int, chunk: bytes, deadline_s: float | None) -> None:
        subject = chunk_subject(self._run, digest, number)

        async def request() -> api.PubAck:
            headers = {api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0", "trinity-chunks": str(count)}
            return await self._connection.jetstream.publish(subject, chunk, headers=headers)

        patience = Patience(self._connection, f"chunk {number} of blob {digest[:12]}", deadline_s, "publish_waiting")
        try:
            await patience.until_answered(request, partial(advice, self._connection, self._stream))
        except RevisionConflict:
            pass  # the chunk stands there already

    async def _chunks(self, digest: str) -> tuple[dict[int, bytes], int]:
        """The chunks that are there by number, and how many there should be. Begins anew when the server goes away."""
        while True:
            losses = self._connection.losses
            consumer, expected = await self._consumer(chunk_subject(self._run, digest, "*"))
            chunks: dict[int, bytes] = {}
            count, seen, end = 0, 0, PullEnd.NO_MORE
            try:
                while seen < expected:
                    pulled = await pull(self._connection, self._stream, consumer, min(16, expected - seen))
                    for msg in pulled.messages:
                        chunks[int(msg.subject.rpartition(".")[2])] = msg.data
                        count = int((msg.headers or {}).get("trinity-chunks", 0))
                    seen, end = seen + len(pulled.messages), pulled.end
                    if not pulled.messages:
                        break
            finally:
                await self._forget(consumer)
            if seen >= expected or (end is PullEnd.NO_MORE and losses == self._connection.losses):
                return chunks, count

    async def _forget(self, consumer: str) -> None:
        """Drop a consumer at once: a stream takes a thousand of them, and each read of a blob needs one."""
        if self._connection.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._connection.jetstream.delete_consumer(self._stream, consumer)

    async def _consumer(self, subject: str) -> tuple[str, int]:
        name = f"blob-{uuid.uuid4().hex}"
        config = api.ConsumerConfig(
            name=name, filter_subject=subject, ack_policy=api.AckPolicy.NONE, inactive_threshold=60, mem_storage=True
        )

        async def request() -> int:
            try:
                info = await self._connection.jetstream.add_consumer(self._stream, config)
            except nats.js.errors.NotFoundError as error:
                raise BusRefused(f"stream {self._stream} does not exist: declare the run first") from error
            return info.num_pending or 0

        return name, await Patience(self._connection, f"read of {subject}").until_answered(request)


async def _digest(payload: bytes) -> str:
    if len(payload) > _LARGE_BYTES:
        return (await asyncio.to_thread(hashlib.sha256, payload)).hexdigest()
    return hashlib.sha256(payload).hexdigest()
