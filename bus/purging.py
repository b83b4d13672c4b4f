"""What a purge must free besides the messages: the blobs that only they claimed."""

import uuid

from nats.js import api

from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import CLAIM_HEADER
from bus.pulling import PullEnd, pull
from bus.retrying import Patience

_BATCH = 256


async def claims(connection: Connection, stream: str, start: int, end: int | None = None) -> set[str]:
    """The digests claimed by messages from sequence `start` up to but not including `end`. Reads headers only."""
    found: set[str] = set()
    position = start
    while end is None or position < end:
        consumer = await _consumer(connection, stream, position)
        while True:
            pulled = await pull(connection, stream, consumer, _BATCH)
            for msg in pulled.messages:
                position = msg.metadata.sequence.stream + 1
                digest = (msg.headers or {}).get(CLAIM_HEADER)
                if digest and (end is None or position <= end):
                    found.add(digest)
            if end is not None and position >= end:
                return found
            if not pulled.messages:
                break
        if pulled.end is PullEnd.NO_MORE:
            return found
    return found


async def drop_unclaimed(connection: Connection, stream: str, blobs: Blobs, digests: set[str], start: int) -> None:
    """Drop those blobs that no message from `start` on claims too."""
    for digest in digests - await claims(connection, stream, start):
        await blobs.drop(digest)


async def _consumer(connection: Connection, stream: str, start: int) -> str:
    name = f"purge-{uuid.uuid4().hex}"
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

    await Patience(connection, f"look for claims in {stream}").until_answered(request)
    return name
