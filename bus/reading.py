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
from bus.delivery import LogDelivery
from bus.errors import BusRefused
from bus.opening import Opener
from bus.pulling import Pulled, PullEnd, pull
from bus.retrying import Patience
from bus.subjects import Stream, stream_name

BATCH = 64
LINGER_S = 2.0
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
        self._delivered = 0
        self._losses = connection.losses

    async def read(self, start: int, until: int | None) -> AsyncGenerator[LogDelivery, None]:
        """From sequence `start`; to `until` inclusive, or for ever."""
        position = max(start, 1)
        try:
            while until is None or position <= until:
                pulled = await self._pull(position, is_waiting=until is None)
                for msg in pulled.messages:
                    if self._is_skipped(msg):
                        await self._forget()
                        break
                    sequence = msg.metadata.sequence.stream
                    if until is not None and sequence > until:
                        return
                    if sequence >= position:
                        position = sequence + 1
                        yield await self._opened(msg)
                if until is not None and pulled.end is PullEnd.NO_MORE and not pulled.messages:
                    return
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

    async def _pull(self, position: int, is_waiting: bool) -> Pulled:
        if self._losses != self._connection.losses:
            await self._forget()  # what was on its way when the connection broke counts as delivered
        if self._consumer is None:
            self._losses = self._connection.losses
            self._consumer = await self._start(position)
        pulled = await pull(self._connection, self._name, self._consumer, BATCH)
        if is_waiting and pulled.end is PullEnd.NO_MORE and not pulled.messages:
            pulled = await pull(self._connection, self._name, self._consumer, 1, LINGER_S)
        if pulled.end in (PullEnd.GONE, PullEnd.SILENCE):
            await self._forget()
            await asyncio.sleep(0.05)
        return pulled

    def _is_skipped(self, msg: Msg) -> bool:
        """Whether a delivery before this one was lost on its way: consumer sequences have no gaps."""
        self._delivered += 1
        return msg.metadata.sequence.consumer != self._delivered

    async def _opened(self, msg: Msg) -> LogDelivery:
        about = msg.metadata
        opened = await self._opener.open(self._stream, msg.subject, about.sequence.stream, msg.data)
        return LogDelivery(
            opened.message, opened.error, about.sequence.stream, msg.subject, about.timestamp.timestamp(), msg.data
        )

    async def _start(self, position: int) -> str:
        name = f"reader-{uuid.uuid4().hex}"
        config = api.ConsumerConfig(
            name=name,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=position,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=_INACTIVE_S,
            mem_storage=True,
        )

        async def request() -> None:
            try:
                await self._connection.jetstream.add_consumer(self._name, config)
            except nats.js.errors.NotFoundError as error:
                raise self._missing() from error

        await Patience(self._connection, f"read {self._name} from {position}").until_answered(request)
        self._delivered = 0
        return name

    async def _forget(self) -> None:
        """Drop the consumer, politely where that is possible; the server forgets an idle one by itself."""
        consumer, self._consumer = self._consumer, None
        if consumer is None or not self._connection.is_connected:
            return
        try:
            await self._connection.jetstream.delete_consumer(self._name, consumer)
        except (nats.errors.Error, OSError):
            pass

    def _missing(self) -> BusRefused:
        return BusRefused(f"stream {self._name} does not exist: declare the run first")
