"""The bus over NATS JetStream: the port's one implementation, made of its parts."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import nats.js.errors
from nats.js import api

from bus import topology
from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import QueueDelivery
from bus.errors import BusRefused
from bus.keyvalue import KeyValue
from bus.leasing import KeyLease, lease_holder, take
from bus.opening import Opener
from bus.outlining import outlines
from bus.port import Bus, Delivery, Outline, Queue, Revised, Stored, StreamState
from bus.publishing import Publisher
from bus.purging import claims, drop_unclaimed
from bus.queueing import TaskQueue
from bus.reading import LogReader
from bus.removing import quarantined_claims, remove
from bus.retrying import Patience
from bus.settings import BusSettings
from bus.subjects import FLEETING, Stream, bucket_name, stream_name
from schemas.codec import encode
from schemas.message import Message
from schemas.state import LeaseHeld


async def connect(url: str, run: str, *, name: str, settings: BusSettings | None = None, observes: bool = False) -> Bus:
    """The bus at `url`, for one run. `name` is how the server and its tools call this connection.

    One that only `observes` leaves no trace: what it cannot read it does not quarantine.

    Raises:
        BusUnavailable: nobody answers within `connect_timeout_s`.
        BusRefused: the server does not accept the credentials.
    """
    connection = Connection(url, name, settings or BusSettings())
    await connection.open()
    return JetStreamBus(connection, run, observes)


class JetStreamBus:
    """Everything that a service may ask of the bus, over one connection."""

    def __init__(self, connection: Connection, run: str, observes: bool = False) -> None:
        self._connection = connection
        self._run = run
        self._blobs = Blobs(connection, run)
        self._publisher = Publisher(connection, run, self._blobs)
        self._opener = Opener(run, self._blobs, self._publisher, observes, connection.name)
        self._store = KeyValue(connection, bucket_name(run))
        self._members = KeyValue(connection, bucket_name(run, FLEETING))
        self._leases: list[KeyLease] = []

    @property
    def run(self) -> str:
        return self._run

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def is_connected(self) -> bool:
        return self._connection.is_connected

    async def declare(self) -> None:
        await topology.declare(self._connection, self._run, self._connection.settings)

    async def publish(self, message: Message, deadline_s: float | None = None, message_id: str | None = None) -> Stored:
        return await self._publisher.publish(message, deadline_s, message_id=message_id)

    async def publish_next(self, message: Message, after: int) -> Stored:
        return await self._publisher.publish(message, after=after)

    async def publish_all(self, messages: Sequence[Message], window: int = 32) -> list[Stored]:
        return await self._publisher.publish_all(messages, window)

    async def queue(self, tasksets: Sequence[str] = ()) -> Queue:
        return TaskQueue(self._connection, self._run, self._opener, self._blobs, tasksets)

    def read(self, stream: Stream, start: int = 1, follow: bool = True) -> AsyncIterator[Delivery]:
        last = None if follow else asyncio.ensure_future(self._last_sequence(stream))
        return self._read(stream, start, last)

    def outlines(self, stream: Stream, start: int = 1) -> AsyncIterator[Outline]:
        return outlines(self._connection, stream_name(self._run, stream), start)

    async def last(self, stream: Stream) -> Delivery | None:
        return await LogReader(self._connection, self._run, stream, self._opener).last()

    async def state(self, stream: Stream) -> StreamState:
        info = await self._info(stream)
        in_hand = await self._in_hand() if stream is Stream.TASKS else 0
        limit = info.config.max_bytes or -1
        return StreamState(
            messages=info.state.messages,
            size_bytes=info.state.bytes,
            first=info.state.first_seq,
            last=info.state.last_seq,
            limit_bytes=limit if limit > 0 else None,
            pending=max(0, info.state.messages - in_hand) if stream is Stream.TASKS else 0,
            in_hand=in_hand,
        )

    async def purge(self, stream: Stream, up_to: int) -> None:
        info = await self._info(stream)
        below = min(up_to, info.state.last_seq + 1)
        if below <= max(1, info.state.first_seq):
            return  # the server takes a purge up to sequence 0 or 1 for a purge of everything
        name = stream_name(self._run, stream)
        claimed = await claims(self._connection, name, info.state.first_seq, below)

        async def request() -> bool:
            return await self._connection.jetstream.purge_stream(name, seq=below)

        await Patience(self._connection, f"purge of {name} below {below}").until_answered(request)
        if claimed:
            claimed -= await quarantined_claims(self._connection, self._run, self._blobs)
            await drop_unclaimed(self._connection, name, self._blobs, claimed, below)

    async def remove(self, stream: Stream, *sequences: int) -> int:
        return await remove(self._connection, self._run, self._blobs, stream, sequences)

    async def put(self, key: str, message: Message, ttl_s: float | None = None) -> int:
        return await self._store_of(key).put(key, message, ttl_s)

    async def get(self, key: str) -> Revised | None:
        return await self._store_of(key).get(key)

    async def swap(self, key: str, message: Message, revision: int, ttl_s: float | None = None) -> int:
        return await self._store_of(key).swap(key, message, revision, ttl_s)

    async def delete(self, key: str) -> None:
        await self._store_of(key).delete(key)

    async def entries(self, prefix: str) -> list[Revised]:
        return await self._store_of(prefix).entries(prefix)

    async def lease(self, name: str, holder: str, ttl_s: float, wait: bool = True) -> KeyLease:
        lease = await take(self._store, name, holder, ttl_s, wait)
        self._leases = [*(each for each in self._leases if each.is_held), lease]
        return lease

    async def lease_holder(self, name: str) -> LeaseHeld | None:
        return await lease_holder(self._store, name)

    async def quarantine(self, delivery: Delivery, stream: Stream, reason: str) -> None:
        attempts, payload = 0, delivery.payload
        if isinstance(delivery, QueueDelivery):
            attempts = delivery.attempt
            if delivery.message is not None:  # the blob of a claim goes when the task is acknowledged
                payload = encode(delivery.message)
        await self._opener.quarantine(
            stream, delivery.subject, delivery.sequence, payload, reason, attempts, delivery.message_id
        )

    async def put_blob(self, payload: bytes) -> str:
        return await self._blobs.put(payload)

    async def get_blob(self, digest: str) -> bytes:
        return await self._blobs.get(digest)

    async def drop_blob(self, digest: str) -> None:
        await self._blobs.drop(digest)

    async def close(self) -> None:
        """Leave. Leases in hand are released, so that others need not wait for them."""
        for lease in self._leases:
            await lease.release()
        await self._connection.close()

    def _store_of(self, key: str) -> KeyValue:
        return self._members if key.startswith(FLEETING) else self._store

    async def _read(
        self, stream: Stream, start: int, last: "asyncio.Task[int] | None"
    ) -> AsyncGenerator[Delivery, None]:
        until = None if last is None else await last
        reader = LogReader(self._connection, self._run, stream, self._opener)
        async with contextlib.aclosing(reader.read(start, until)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def _last_sequence(self, stream: Stream) -> int:
        return (await self._info(stream)).state.last_seq

    async def _info(self, stream: Stream) -> api.StreamInfo:
        name = stream_name(self._run, stream)

        async def request() -> api.StreamInfo:
            try:
                return await self._connection.jetstream.stream_info(name)
            except nats.js.errors.NotFoundError as error:
                raise BusRefused(f"stream {name} does not exist: declare the run first") from error

        return await Patience(self._connection, f"state of {name}").until_answered(request)

    async def _in_hand(self) -> int:
        name = stream_name(self._run, Stream.TASKS)

        async def request() -> list[api.ConsumerInfo]:
            return await self._connection.jetstream.consumers_info(name)

        consumers = await Patience(self._connection, f"consumers of {name}").until_answered(request)
        return sum(consumer.num_ack_pending or 0 for consumer in consumers)
