"""A stream's messages without their bodies: what may be freed, since when, and how much that is."""

import uuid
from collections.abc import AsyncGenerator

from nats.aio.msg import Msg
from nats.js import api

from bus.connection import Connection
from bus.port import Outline
from bus.pulling import PullEnd, pull
from bus.retrying import Patience

_BATCH = 256
_SIZE = "Nats-Msg-Size"
_RECORD_BYTES = 30
_HEADER_FRAME_BYTES = len(b"NATS/1.0\r\n\r\n")


async def outlines(connection: Connection, stream: str, start: int) -> AsyncGenerator[Outline, None]:
    """The messages from sequence `start` on that are stored now, each once and in order."""
    position = start
    while True:
        consumer = await _consumer(connection, stream, position)
        while True:
            pulled = await pull(connection, stream, consumer, _BATCH)
            for msg in pulled.messages:
                found = _outline(msg)
                if found.sequence >= position:
                    position = found.sequence + 1
                    yield found
            if not pulled.messages:
                break
        if pulled.end is PullEnd.NO_MORE:
            return


def _outline(msg: Msg) -> Outline:
    about, headers = msg.metadata, dict(msg.headers or {})
    return Outline(
        sequence=about.sequence.stream,
        subject=msg.subject,
        size_bytes=_stored_size(msg.subject, headers, int(headers.pop(_SIZE, 0))),
        stored_at=about.timestamp.timestamp(),
        headers=headers,
    )


def _stored_size(subject: str, headers: dict[str, str], body_bytes: int) -> int:
    """What the message takes in the server's file store: its record, with the lengths and the checksum around it."""
    lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items() if name != _SIZE)
    return _RECORD_BYTES + len(subject.encode()) + (4 + _HEADER_FRAME_BYTES + lines if lines else 0) + body_bytes


async def _consumer(connection: Connection, stream: str, start: int) -> str:
    name = f"outline-{uuid.uuid4().hex}"
    config = api.ConsumerConfig(
        name=name,
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(1, start),
        ack_policy=api.AckPolicy.NONE,
        inactive_threshold=60,
        headers_only=True,
        mem_storage=True,
    )

    async def request() -> None:
        await connection.jetstream.add_consumer(stream, config)

    await Patience(connection, f"look through {stream}").until_answered(request)
    return name
