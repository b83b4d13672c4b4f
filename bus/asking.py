"""Publishes whose answer is heard through one inbox, at the cost of one future each: the path of every message.

The client library's own request would do, but it costs several tasks and timers a message once denials and deadlines
are put around it, as much as all else that is done for a group.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from bus.connection import Connection

T = TypeVar("T")

_NO_RESPONDERS = "503"


class Asker:
    """The publishes of one connection that wait for the server's word."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._listening = asyncio.Lock()
        self._inbox: str | None = None
        self._asked = 0
        self._waiting: dict[str, asyncio.Future[Msg | str | None]] = {}
        connection.when_lost.add(self._give_up)

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """The server's acknowledgement of one message. Sends once.

        Raises:
            nats.errors.Error: as the client library's own publish would, within `request_timeout_s`, and as soon as the
                connection breaks; `Denied` among them.
        """
        inbox = self._inbox or await self._listen()
        self._asked += 1
        reply = f"{inbox}.{self._asked}"
        loop, denials = asyncio.get_running_loop(), self._connection.denials
        answer: asyncio.Future[Msg | str | None] = loop.create_future()
        timer = loop.call_later(self._connection.settings.request_timeout_s, _settle, answer, None)
        denials.enlist(subject, answer)
        self._waiting[reply] = answer
        try:
            await unswallowed(self._connection.client.publish(subject, payload, reply=reply, headers=headers))
            heard = await answer
        finally:
            timer.cancel()
            denials.dismiss(subject, answer)
            del self._waiting[reply]
        if isinstance(heard, str):
            raise denials.denied(subject, heard)
        return _acknowledgement(heard)

    async def _listen(self) -> str:
        async with self._listening:
            if self._inbox is None:
                inbox = self._connection.client.new_inbox()
                await self._connection.client.subscribe(f"{inbox}.*", cb=self._hear)
                self._inbox = inbox
        return self._inbox

    def _give_up(self) -> None:
        for answer in self._waiting.values():
            _settle(answer, None)

    async def _hear(self, msg: Msg) -> None:
        answer = self._waiting.get(msg.subject)
        if answer is not None:  # else it came after its time
            _settle(answer, msg)


async def unswallowed(sending: Awaitable[T]) -> T:
    """Await the client's sending. It swallows a cancellation that meets it while it flushes, so it is raised here."""
    task = asyncio.current_task()
    asked_before = task.cancelling() if task else 0
    sent = await sending
    if task and task.cancelling() > asked_before:
        raise asyncio.CancelledError
    return sent


def _settle(answer: "asyncio.Future[Msg | str | None]", word: Msg | None) -> None:
    if not answer.done():
        answer.set_result(word)


def _acknowledgement(heard: Msg | None) -> dict[str, Any]:
    if heard is None:
        raise nats.errors.TimeoutError
    if heard.headers and heard.headers.get(api.Header.STATUS) == _NO_RESPONDERS:
        raise nats.js.errors.NoStreamResponseError
    acknowledged: dict[str, Any] = json.loads(heard.data)
    if "error" in acknowledged:
        raise nats.js.errors.APIError.from_error(acknowledged["error"])
    return acknowledged
