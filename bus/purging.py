"""What a purge must free besides the messages: the blobs that only they claimed."""

from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import CLAIM_HEADER
from bus.outlining import outlines


async def claims(connection: Connection, stream: str, start: int, end: int | None = None) -> set[str]:
    """The digests claimed by messages from sequence `start` up to but not including `end`. Reads headers only."""
    found: set[str] = set()
    async for outline in outlines(connection, stream, start):
        if end is not None and outline.sequence >= end:
            break
        if CLAIM_HEADER in outline.headers:
            found.add(outline.headers[CLAIM_HEADER])
    return found


async def drop_unclaimed(connection: Connection, stream: str, blobs: Blobs, digests: set[str], start: int) -> None:
    """Drop those blobs that no message from `start` on claims too."""
    for digest in digests - await claims(connection, stream, start):
        await blobs.drop(digest)
