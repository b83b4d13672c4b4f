"""Reading a log from a sequence on, each message once and in order, whatever happens to the server or the consumer.

The position is kept here and not in the server: a consumer that is lost, or that skipped a delivery, is replaced by
one that starts after the last message that was handed on.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from bus.connection import Connection
from bus.delivery import ID_HEADER, LogDelivery
from bus.errors import BusRefused
from bus.following import Flow
from bus.opening import Opener
from bus.retrying import Patience
from bus.subjects import Stream, stream_name

_PAUSE_S = 0.05
_INACTIVE_S = 300
_LAST_SUBJECT = ">"


class LogReader:
    """Reads one stream of a run."""

    def __init__(self, connection: Connection, run: str, stream: Stream, opener: Opener) -> None:
        self._connection = connection
        self._stream = stream
        self._name = stream_name(run, stream)
        self._opener = opener
        self._consumer: str | None = None
        self._flow: Flow | None = None
        self._delivered = self._there = 0

    async def read(self, start: int, until: int | None) -> AsyncGenerator[LogDelivery, None]:
        """From sequence `start`; to `until` inclusive, or for ever."""
        position = max(start, 1)
        try:
            while until is None or position <= until:
                flow = self._flow or await self._begin(position)
                if until is not None and self._delivered == self._there:
                    return
                try:
                    msg = await flow.next()
                except TimeoutError:
                    if until is not None and await self._is_drained():
                        return
                    continue
                if msg is None or self._is_skipped(msg):
                    await self._forget()
                    await asyncio.sleep(_PAUSE_S)
                    continue
                about = msg.metadata
                sequence = about.sequence.stream
                if until is not None and sequence > until:
                    return
                if sequence >= position:
                    position = sequence + 1
                    yield await self._opened(msg)
                self._there = self._delivered + about.num_pending
        finally:
            await self._forget()

    async def last(self) -> LogDelivery | None:
        """The newest message that can be read. Garbage behind it hides nothing, and is left to the readers."""
        raw = await self._stored(None)
        sequence = raw.seq or 0 if raw is not None else 0
        while sequence > 0:
            if raw is not None:
                subject, payload = raw.subject or "", raw.data or b""
                opened = await self._opener.open(self._stream, subject, sequence, payload, is_kept=False)
                if opened.message is not None:
                    stored_at = raw.time.timestamp() if raw.time else 0.0
                    return LogDelivery(opened.message, None, sequence, subject, stored_at, payload)
            sequence -= 1
            raw = await self._stored(sequence) if sequence > 0 else None
        return None

    async def _stored(self, sequence: int | None) -> api.RawStreamMsg | None:
        """The message at `sequence`, or the newest of all for None; None where there is none."""

        async def request() -> api.RawStreamMsg | None:
            try:
                if sequence is None:
                    return await self._connection.jetstream.get_msg(self._name, subject=_LAST_SUBJECT)
                return await self._connection.jetstream.get_msg(self._name, seq=sequence)
            except nats.js.errors.NotFoundError as error:
                if "stream" in (error.description or ""):
                    raise self._missing() from error
                return None

        return await Patience(self._connection, f"last of {self._name}").until_answered(request)

    def _is_skipped(self, msg: Msg) -> bool:
        """Whether a delivery before this one was lost on its way: consumer sequences have no gaps."""
        self._delivered += 1
        return msg.metadata.sequence.consumer != self._delivered

    async def _opened(self, msg: Msg) -> LogDelivery:
        sequence, stored_at = msg.metadata.sequence.stream, msg.metadata.timestamp.timestamp()
        message_id = (msg.headers or {}).get(ID_HEADER, "")
        opened = await self._opener.open(self._stream, msg.subject, sequence, msg.data, message_id=message_id)
        return LogDelivery(
            opened.message, opened.error, sequence, msg.subject, stored_at, msg.data, message_id=message_id
        )

    async def _begin(self, position: int) -> Flow:
        self._delivered = 0
        self._consumer, self._there = await self._start(position)
        self._flow = Flow(self._connection, self._name, self._consumer)
        await self._flow.open()
        return self._flow

    async def _start(self, position: int) -> tuple[str, int]:
        """A consumer from `position` on, and how many messages wait for it."""
        name = f"reader-{uuid.uuid4().hex}"
        config = api.ConsumerConfig(
            name=name,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=position,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=_INACTIVE_S,
            mem_storage=True,
        )

        async def request() -> int:
            try:
                return (await self._connection.jetstream.add_consumer(self._name, config)).num_pending or 0
            except nats.js.errors.NotFoundError as error:
                raise self._missing() from error

        patience = Patience(self._connection, f"read {self._name} from {position}")
        return name, await patience.until_answered(request)

    async def _is_drained(self) -> bool:
        """Whether nothing is left for the consumer to deliver, nor on its way here."""
        consumer = self._consumer
        if consumer is None:
            return False
        try:
            info = await self._connection.jetstream.consumer_info(self._name, consumer)
        except (nats.errors.Error, OSError):
            return False  # the flow is broken too, and says so next
        delivered = info.delivered.consumer_seq if info.delivered else 0
        return info.num_pending == 0 and delivered == self._delivered

    async def _forget(self) -> None:
        """Drop the consumer, politely where that is possible; the server forgets an idle one by itself."""
        flow, self._flow = self._flow, None
        consumer, self._consumer = self._consumer, None
        if flow is not None:
            await flow.close()
        if consumer is None or not self._connection.is_connected:
            return
        try:
            await self._connection.jetstream.delete_consumer(self._name, consumer)
        except (nats.errors.Error, OSError):
            pass

    def _missing(self) -> BusRefused:
        return BusRefused(f"stream {self._name} does not exist: declare the run first")
