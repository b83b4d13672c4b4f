"""One message as read from a stream, and the words that answer it. The only module that acknowledges."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg

from bus.connection import Connection
from bus.errors import BusUnavailable
from bus.retrying import Patience
from schemas.message import Message

_NANOSECONDS = 1_000_000_000
CLAIM_HEADER = "trinity-claim"
ID_HEADER = "Nats-Msg-Id"


@dataclass(frozen=True)
class LogDelivery:
    """A message of a log. Nothing waits for its acknowledgement."""

    message: Message | None
    error: str | None
    sequence: int
    subject: str
    stored_at: float
    payload: bytes
    attempt: int = 1
    message_id: str = ""

    async def ack(self) -> None:
        """A log keeps its messages."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """A log delivers once to each reader."""

    async def in_progress(self) -> None:
        """Nobody waits."""


@dataclass(frozen=True)
class QueueDelivery:
    """A message of the work queue, leased to this process until it is answered."""

    message: Message | None
    error: str | None
    sequence: int
    subject: str
    stored_at: float
    payload: bytes
    attempt: int
    reply: str
    connection: Connection
    after_ack: Callable[[], Awaitable[None]] | None = None
    message_id: str = ""

    async def ack(self) -> None:
        """Done. Waits for the server's word, at most for one lease: after it the task is delivered again anyway.

        Raises:
            PublishTimeout: no word came.
        """
        await self._answer(b"+ACK")
        if self.after_ack is not None:
            await self.after_ack()

    async def term(self, reason: str) -> None:
        """Take it off the queue though it was not done."""
        await self._answer(f"+TERM {reason[:200]}".encode())

    async def nak(self, delay_s: float = 0.0) -> None:
        await _tell(self.connection, self.reply, nak_word(delay_s))

    async def in_progress(self) -> None:
        await _tell(self.connection, self.reply, b"+WPI")

    async def _answer(self, word: bytes) -> None:
        timeout_s = self.connection.settings.request_timeout_s

        async def request() -> Msg:
            return await self.connection.client.request(self.reply, word, timeout=timeout_s)

        lease_s = self.connection.settings.terms.lease_s
        await Patience(self.connection, f"ack of task {self.sequence}", lease_s).until_answered(request)


def nak_word(delay_s: float = 0.0) -> bytes:
    if delay_s <= 0:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": int(delay_s * _NANOSECONDS)}).encode()


async def nak_raw(connection: Connection, msg: Msg) -> None:
    """Hand back a message that nobody has looked at."""
    if msg.reply and connection.client.is_connected:
        await _tell(connection, msg.reply, nak_word())


async def _tell(connection: Connection, reply: str, word: bytes) -> None:
    connection.check()
    try:
        await connection.client.publish(reply, word)
    except nats.errors.OutboundBufferLimitError:
        pass  # the server is away: the lease runs out, and the message is delivered again
    except nats.errors.Error as error:
        raise BusUnavailable(f"{word[:4].decode()} of {reply}: {error}") from error
