"""A consumer's messages as they come, asked for ahead of their use and held in bounded memory.

More is asked for while what has come is being used, so that reading waits neither for the server nor the server for
it. What is held and on its way stays within about twice `AHEAD_BYTES`, however slowly it is used.
"""

import asyncio
import json
import time
from collections import deque
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from bus.asking import unswallowed
from bus.connection import Connection
from bus.errors import BusRefused
from bus.pulling import PullEnd, ending, status, unsent
from bus.settings import MIB

AHEAD = 256
AHEAD_BYTES = 16 * MIB
_EXPIRES_S, _HEARTBEAT_S = 30, 5
_SILENCE_S = 2 * _HEARTBEAT_S + 1
_LOOK_S = 1.0
_NANOSECONDS = 1_000_000_000


class Flow:
    """The messages of one consumer, until the flow breaks: the consumer, the connection or the server is gone."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.client.new_inbox()
        self._subscription: Any = None
        self._losses = connection.losses
        self._held: deque[Msg] = deque()
        self._held_bytes = 0
        self._owed = 0
        self._is_over = self._is_oversized = False
        self._has_come = False
        self._heard_at = time.monotonic()
        self._changed = asyncio.Event()
        self._denied: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        """Listen, and ask for the first messages."""
        self._connection.denials.enlist(self._subject, self._denied)
        self._denied.add_done_callback(lambda _: self._changed.set())
        try:
            listening = self._connection.client.subscribe(
                self._inbox, cb=self._arrive, pending_msgs_limit=0, pending_bytes_limit=0
            )
            self._subscription = await unswallowed(listening)
        except nats.errors.Error:
            self._connection.check()
            self._is_over = True
            return
        await self._ask()

    async def close(self) -> None:
        """Stop listening. What has come and was not used is dropped."""
        self._connection.denials.dismiss(self._subject, self._denied)
        self._denied.cancel()
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except nats.errors.Error:
                pass  # the connection is closed or closing, and its subscriptions with it

    async def next(self) -> Msg | None:
        """The next message; None when the flow has broken.

        Raises:
            TimeoutError: nothing has come for a second. Call again.
            BusUnavailable: the connection is closed for good.
            BusRefused: the server allows this consumer to another role only.
        """
        if not self._held:
            await self._wait()
        if not self._held or self._losses != self._connection.losses:
            return None  # what was on its way when the connection broke counts as delivered
        msg = self._held.popleft()
        self._held_bytes -= len(msg.data)
        if self._is_low():
            await self._ask()
        return msg

    async def _wait(self) -> None:
        """Until something has come or the flow is broken."""
        self._connection.check()
        if self._is_low():
            await self._ask()
        since = time.monotonic()
        self._changed.clear()
        while not self._held and not self._is_broken():
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                self._is_over = self._is_over or time.monotonic() - max(since, self._heard_at) > _SILENCE_S
                if not self._is_broken() and not self._held:
                    raise
            self._changed.clear()
            if self._owed <= 0:
                await self._ask()
        self._connection.check()

    def _is_broken(self) -> bool:
        if self._denied.done():
            raise BusRefused(str(self._connection.denials.denied(self._subject, self._denied.result())))
        return self._is_over or self._losses != self._connection.losses

    def _is_low(self) -> bool:
        return self._owed + len(self._held) <= AHEAD // 2 and self._held_bytes < AHEAD_BYTES // 2

    async def _ask(self) -> None:
        """Ask for as many as may be held. One alone that exceeds the limit in bytes is asked for by itself."""
        most = 1 if self._is_oversized else AHEAD - self._owed - len(self._held)
        request: dict[str, Any] = {
            "batch": most,
            "expires": _EXPIRES_S * _NANOSECONDS,
            "idle_heartbeat": _HEARTBEAT_S * _NANOSECONDS,
        }
        if not self._is_oversized:
            request["max_bytes"] = AHEAD_BYTES
        self._owed += most
        self._is_oversized = self._has_come = False
        self._heard_at = time.monotonic()
        try:
            body = json.dumps(request).encode()
            await unswallowed(self._connection.client.publish(self._subject, body, reply=self._inbox))
        except nats.errors.Error:
            self._connection.check()
            self._is_over = True

    async def _arrive(self, msg: Msg) -> None:
        self._heard_at = time.monotonic()
        said = status(msg)
        if said is None:
            self._owed -= 1
            self._has_come = True
            self._held.append(msg)
            self._held_bytes += len(msg.data)
        elif said[0] != "100":
            self._end_request(msg, *said)
        else:
            return
        self._changed.set()

    def _end_request(self, msg: Msg, code: str, description: str) -> None:
        if ending(code, description) is not PullEnd.NO_MORE:
            self._is_over = True
            return
        self._owed -= unsent(msg, self._owed)
        self._is_oversized = "MaxBytes" in description and not self._has_come and not self._held
