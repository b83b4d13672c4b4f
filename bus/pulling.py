"""One pull from a consumer, over an inbox of its own, so that nothing of it reaches the next.

The client library's `fetch` leaves a lingering request behind when it is cancelled, and the messages it then receives
count as delivered. Here the inbox goes with the request, and what came too late is handed to the caller's `unused`.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from bus.connection import Connection
from bus.settings import MIB

_ANSWER_SLACK_S = 1.0
_MOST_BYTES = 32 * MIB
_NANOSECONDS = 1_000_000_000


class PullEnd(StrEnum):
    """How a pull ended: full, nothing more for now, the consumer is gone, or no word from the server."""

    FULL = "full"
    NO_MORE = "no_more"
    GONE = "gone"
    SILENCE = "silence"


@dataclass
class Pulled:
    messages: list[Msg] = field(default_factory=list)
    end: PullEnd = PullEnd.SILENCE


async def pull(
    connection: Connection,
    stream: str,
    consumer: str,
    most: int,
    wait_s: float = 0.0,
    unused: Callable[[Msg], Awaitable[None]] | None = None,
) -> Pulled:
    """Up to `most` messages that are there now; with `wait_s`, up to `most` that are there or come within it.

    Raises:
        BusUnavailable: the connection is closed for good.
    """
    connection.check()
    client = connection.client
    arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def arrive(msg: Msg) -> None:
        arrived.put_nowait(msg)

    inbox = client.new_inbox()
    pulled = Pulled()
    subscription = None
    try:
        subscription = await client.subscribe(inbox, cb=arrive, pending_msgs_limit=0, pending_bytes_limit=0)
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", _request(most, wait_s), reply=inbox)
        await _collect(arrived, pulled, most, wait_s + connection.settings.request_timeout_s + _ANSWER_SLACK_S)
    except asyncio.CancelledError:
        await _hand_back([*pulled.messages, *_rest(arrived)], unused)
        raise
    except nats.errors.Error:
        connection.check()
    finally:
        if subscription is not None:
            await _unsubscribe(subscription)
    return pulled


async def _collect(arrived: "asyncio.Queue[Msg]", pulled: Pulled, most: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while len(pulled.messages) < most:
        try:
            msg = await asyncio.wait_for(arrived.get(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pulled.end = PullEnd.SILENCE
            return
        status = _status(msg)
        if status is None:
            pulled.messages.append(msg)
        elif status[0] != "100":
            pulled.end = _ending(*status)
            return
    pulled.end = PullEnd.FULL


def _request(most: int, wait_s: float) -> bytes:
    request: dict[str, Any] = {"batch": most}
    if wait_s > 0:
        request["expires"] = int(wait_s * _NANOSECONDS)
    else:
        request["no_wait"] = True
    if most > 1:
        request["max_bytes"] = _MOST_BYTES
    return json.dumps(request).encode()


def _status(msg: Msg) -> tuple[str, str] | None:
    """A status in place of a message: it has no stream behind its reply subject."""
    if msg.reply or not msg.headers or "Status" not in msg.headers:
        return None
    return msg.headers["Status"], msg.headers.get("Description", "")


def _ending(code: str, description: str) -> PullEnd:
    if code in ("404", "408"):
        return PullEnd.NO_MORE
    if code == "409" and ("MaxBytes" in description or "Batch Completed" in description):
        return PullEnd.NO_MORE
    return PullEnd.GONE


def _rest(arrived: "asyncio.Queue[Msg]") -> list[Msg]:
    rest = []
    while not arrived.empty():
        rest.append(arrived.get_nowait())
    return [msg for msg in rest if _status(msg) is None]


async def _hand_back(messages: list[Msg], unused: Callable[[Msg], Awaitable[None]] | None) -> None:
    if unused is not None:
        for msg in messages:
            await unused(msg)


async def _unsubscribe(subscription: Any) -> None:
    try:
        await subscription.unsubscribe()
    except nats.errors.Error:
        pass  # the connection is closed or closing, and its subscriptions with it
