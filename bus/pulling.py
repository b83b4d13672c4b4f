"""One pull from a consumer, over an inbox of its own, so that nothing of it reaches the next.

The client library's `fetch` leaves a lingering request behind when it is cancelled, and the messages it then receives
count as delivered. Here the inbox goes with the request, and what came too late is handed to the caller's `unused`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from bus.connection import Connection
from bus.denials import Denied
from bus.errors import BusRefused
from bus.settings import MIB

_ANSWER_SLACK_S = 1.0
_MOST_BYTES = 32 * MIB
_UNSENT_HEADER = "Nats-Pending-Messages"
_NANOSECONDS = 1_000_000_000


Arrived = asyncio.Queue[Msg | None]
"""What has come; None where the connection has broken."""


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
    """Up to `most` messages that are there now; where there is none, the first that come within `wait_s`.

    Raises:
        BusUnavailable: the connection is closed for good.
        BusRefused: the server allows this consumer to another role only.
    """
    connection.check()
    client = connection.client
    arrived: Arrived = asyncio.Queue()

    async def arrive(msg: Msg) -> None:
        arrived.put_nowait(msg)

    def give_up() -> None:
        arrived.put_nowait(None)

    connection.when_lost.add(give_up)
    inbox = client.new_inbox()
    pulled = Pulled()
    subscription = None
    try:
        subscription = await client.subscribe(inbox, cb=arrive, pending_msgs_limit=0, pending_bytes_limit=0)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        await client.publish(subject, _request(most, wait_s), reply=inbox)
        patience_s = wait_s + connection.settings.request_timeout_s + _ANSWER_SLACK_S
        await connection.denials.unless_denied(subject, _collect(arrived, pulled, most, patience_s))
    except asyncio.CancelledError:
        await _hand_back([*pulled.messages, *_rest(arrived)], unused)
        raise
    except Denied as error:
        raise BusRefused(str(error)) from error
    except nats.errors.Error:
        connection.check()
    finally:
        connection.when_lost.discard(give_up)
        if subscription is not None:
            await _unsubscribe(subscription)
    return pulled


async def _collect(arrived: Arrived, pulled: Pulled, most: int, patience_s: float) -> None:
    """Messages until there are `most`, a status ends the request, or the connection breaks: after that none comes. What
    is on its way at a status is waited for: that of a replicated consumer overtakes its messages."""
    loop = asyncio.get_running_loop()
    deadline, end = loop.time() + patience_s, PullEnd.SILENCE
    while len(pulled.messages) < most:
        try:
            async with asyncio.timeout_at(deadline):
                msg = await arrived.get()
        except TimeoutError:
            pulled.end = end
            return
        if msg is None:
            return
        said = status(msg)
        if said is None:
            pulled.messages.append(msg)
        elif said[0] != "100":
            end, deadline = ending(*said), min(deadline, loop.time() + _ANSWER_SLACK_S)
            most = min(most, most - unsent(msg, most))
    pulled.end = PullEnd.FULL if end is PullEnd.SILENCE else end


def _request(most: int, wait_s: float) -> bytes:
    request: dict[str, Any] = {"batch": most, "no_wait": True}
    if wait_s > 0:
        request["expires"] = int(wait_s * _NANOSECONDS)
    if most > 1:
        request["max_bytes"] = _MOST_BYTES
    return json.dumps(request).encode()


def status(msg: Msg) -> tuple[str, str] | None:
    """A status in place of a message: it has no stream behind its reply subject."""
    if msg.reply or not msg.headers or "Status" not in msg.headers:
        return None
    return msg.headers["Status"], msg.headers.get("Description", "")


def unsent(msg: Msg, owed: int) -> int:
    """How many messages of the request that this status ends will not be sent, of those that are `owed`."""
    left = (msg.headers or {}).get(_UNSENT_HEADER)
    return owed if left is None else int(left)


def ending(code: str, description: str) -> PullEnd:
    """What a status says of the request that it ends."""
    if code in ("404", "408"):
        return PullEnd.NO_MORE
    if code == "409" and ("MaxBytes" in description or "Batch Completed" in description):
        return PullEnd.NO_MORE
    return PullEnd.GONE


def _rest(arrived: Arrived) -> list[Msg]:
    rest = []
    while not arrived.empty():
        rest.append(arrived.get_nowait())
    return [msg for msg in rest if msg is not None and status(msg) is None]


async def _hand_back(messages: list[Msg], unused: Callable[[Msg], Awaitable[None]] | None) -> None:
    if unused is not None:
        for msg in messages:
            await unused(msg)


async def _unsubscribe(subscription: Any) -> None:
    try:
        await subscription.unsubscribe()
    except nats.errors.Error:
        pass  # the connection is closed or closing, and its subscriptions with it
