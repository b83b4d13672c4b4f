"""The work queue of tasks: leased to one explorer at a time, the oldest first, until somebody acknowledges.

The consumers of a work queue may not overlap, so each taskset has one, shared by all explorers and made by whoever
needs it first. A queue over several of them takes from the one whose next task is the oldest.
"""

import asyncio
import random
import time
from collections.abc import Sequence

import nats.errors
import nats.js.errors
import structlog
from nats.aio.msg import Msg
from nats.js import api

from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import ID_HEADER, QueueDelivery, nak_raw
from bus.errors import BusRefused
from bus.opening import Opener
from bus.port import Delivery
from bus.pulling import Pulled, PullEnd, pull
from bus.retrying import Patience
from bus.subjects import Stream, stream_name, task_subject
from bus.topology import queue_consumer

log = structlog.get_logger()

_LINGER_S = 2.0
_LOOK_AGAIN_S, _LOOK_AGAIN_IDLE_S = 15.0, 2.0
_POLL_S = 0.2


class TaskQueue:
    """The queue of one run: all tasksets, or those that are named."""

    def __init__(
        self, connection: Connection, run: str, opener: Opener, blobs: Blobs, tasksets: Sequence[str] = ()
    ) -> None:
        self._connection = connection
        self._run = run
        self._opener = opener
        self._blobs = blobs
        self._name = stream_name(run, Stream.TASKS)
        self._named = [task_subject(run, taskset) for taskset in tasksets]
        self._consumers: dict[str, str] = {}
        self._looked_at = float("-inf")
        self._is_idle = True

    async def pull(self, most: int, wait_s: float) -> list[Delivery]:
        """Up to `most` deliveries, the oldest first; an empty list when none came within `wait_s`."""
        if most < 1:
            return []
        deadline = time.monotonic() + wait_s
        while True:
            await self._look()
            taken: list[Msg] = []
            try:
                await self._take(taken, most, max(0.0, deadline - time.monotonic()))
                opened = [await self._opened(msg) for msg in taken]
            except asyncio.CancelledError:
                for msg in taken:
                    await nak_raw(self._connection, msg)
                raise
            usable: list[Delivery] = [delivery for delivery in opened if delivery is not None]
            self._is_idle = not usable
            if usable or time.monotonic() >= deadline:
                return usable

    async def _look(self) -> None:
        """Find the tasksets there are, and see that each has its consumer."""
        now = time.monotonic()
        missing = not self._consumers or any(subject not in self._consumers for subject in self._named)
        pause_s = (_LOOK_AGAIN_IDLE_S if self._is_idle else _LOOK_AGAIN_S) * random.uniform(0.8, 1.2)
        if not missing and (self._named or now - self._looked_at < pause_s):
            return
        for subject in self._named or await self._subjects():
            if subject not in self._consumers:
                self._consumers[subject] = await self._consumer(subject)
        self._looked_at = now

    async def _subjects(self) -> list[str]:
        async def request() -> api.StreamInfo:
            try:
                return await self._connection.jetstream.stream_info(self._name, subjects_filter=">")
            except nats.js.errors.NotFoundError as error:
                raise self._missing() from error

        info = await Patience(self._connection, f"look for tasks in {self._name}").until_answered(request)
        return sorted(info.state.subjects or {})

    async def _consumer(self, subject: str) -> str:
        config = queue_consumer(self._run, subject, self._connection.settings.terms)

        async def request() -> None:
            try:
                await self._connection.jetstream.add_consumer(self._name, config)
            except nats.js.errors.NotFoundError as error:
                raise self._missing() from error

        await Patience(self._connection, f"consumer of {subject}").until_answered(request)
        return str(config.name)

    async def _take(self, taken: list[Msg], most: int, left_s: float) -> None:
        """What is there now; where there is nothing, what comes within a while."""
        if len(self._consumers) == 1:
            (subject,) = self._consumers
            await self._pull(taken, subject, most, min(_LINGER_S, left_s))
            return
        heads = {subject: await self._head(subject) for subject in self._consumers}
        while heads and len(taken) < most:
            subject = min(heads, key=lambda each: heads[each])
            if await self._pull(taken, subject, 1):
                heads[subject] = await self._head(subject)
            else:
                del heads[subject]
        if not taken and left_s > 0:
            await asyncio.sleep(min(_POLL_S, left_s))

    async def _pull(self, taken: list[Msg], subject: str, most: int, wait_s: float = 0.0) -> int:
        consumer = self._consumers[subject]
        pulled: Pulled = await pull(self._connection, self._name, consumer, most, wait_s, self._unused)
        taken.extend(pulled.messages)
        if pulled.end is PullEnd.GONE:
            self._consumers.pop(subject, None)
        if pulled.end in (PullEnd.GONE, PullEnd.SILENCE) and not pulled.messages:
            await self._connection.until_connected(_POLL_S)
            await asyncio.sleep(_POLL_S)
        return len(pulled.messages)

    async def _head(self, subject: str) -> int:
        """The sequence of the oldest task not yet delivered. Where there is none, only older ones may come back: 0."""
        js = self._connection.jetstream
        try:
            info = await js.consumer_info(self._name, self._consumers[subject])
            after = info.delivered.stream_seq if info.delivered else 0
            head = await js.get_msg(self._name, seq=after + 1, subject=subject, next=True, direct=True)
        except (nats.errors.Error, OSError, KeyError):
            return 0
        return head.seq or 0

    async def _opened(self, msg: Msg) -> QueueDelivery | None:
        about = msg.metadata
        sequence, attempt = about.sequence.stream, about.num_delivered
        message_id = (msg.headers or {}).get(ID_HEADER, "")
        opened = await self._opener.open(Stream.TASKS, msg.subject, sequence, msg.data, attempt, message_id=message_id)
        digest = opened.digest

        async def drop() -> None:
            if digest is not None:
                await self._blobs.drop(digest)

        delivery = QueueDelivery(
            message=opened.message,
            error=opened.error,
            sequence=sequence,
            subject=msg.subject,
            stored_at=about.timestamp.timestamp(),
            payload=msg.data,
            attempt=attempt,
            reply=msg.reply,
            connection=self._connection,
            after_ack=drop if digest is not None else None,
            message_id=message_id,
        )
        if opened.message is not None:
            return delivery
        log.error("task_quarantined", sequence=sequence, subject=msg.subject, reason=opened.error)
        await delivery.term("quarantined")
        return None

    async def _unused(self, msg: Msg) -> None:
        await nak_raw(self._connection, msg)

    def _missing(self) -> BusRefused:
        return BusRefused(f"stream {self._name} does not exist: declare the run first")
