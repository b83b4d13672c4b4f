"""Taking single messages out of a stream. The blobs that they alone held go with them; those that others claim stay.

Two things hold a blob: a message that travels as a claim on it, and a quarantined message whose own payload is one.
"""

from collections.abc import Sequence

import nats.js.errors
from nats.js import api

from bus.blobs import Blobs
from bus.connection import Connection
from bus.delivery import CLAIM_HEADER
from bus.errors import BlobMissing
from bus.purging import claims
from bus.retrying import Patience
from bus.subjects import Stream, stream_name
from schemas.blobs import BlobClaimed
from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.reports import Quarantined

_CLAIMING = (Stream.EXPERIENCES, Stream.WEIGHTS, Stream.METRICS, Stream.QUARANTINE)


async def remove(connection: Connection, run: str, blobs: Blobs, stream: Stream, sequences: Sequence[int]) -> int:
    """Delete those messages of `stream` that are there, and the blobs that only they held. Returns how many were."""
    name = stream_name(run, stream)
    held: set[str] = set()
    removed = 0
    for sequence in sequences:
        stored = await _stored(connection, name, sequence)
        if stored is None:
            continue
        held |= await _holds(stored, blobs)
        removed += await _deleted(connection, name, sequence)
    if held:
        for digest in held - await _still_held(connection, run, blobs):
            await blobs.drop(digest)
    return removed


async def _still_held(connection: Connection, run: str, blobs: Blobs) -> set[str]:
    """The digests that the run's logs and the messages in its quarantine hold now."""
    held = await quarantined_claims(connection, run, blobs)
    for stream in _CLAIMING:
        held |= await claims(connection, stream_name(run, stream), 1)
    return held


async def quarantined_claims(connection: Connection, run: str, blobs: Blobs) -> set[str]:
    """The digests that quarantined messages travelled as: their blobs are all that is left of them."""
    name = stream_name(run, Stream.QUARANTINE)

    async def request() -> api.StreamInfo:
        return await connection.jetstream.stream_info(name)

    state = (await Patience(connection, f"look into {name}").until_answered(request)).state
    held: set[str] = set()
    for sequence in range(max(1, state.first_seq), state.last_seq + 1):
        stored = await _stored(connection, name, sequence)
        if stored is not None:
            held |= await _holds(stored, blobs)
    return held


async def _holds(stored: api.RawStreamMsg, blobs: Blobs) -> set[str]:
    """The digest that a message travels as, and that which it keeps in quarantine."""
    held = set()
    payload = stored.data or b""
    digest = (stored.headers or {}).get(CLAIM_HEADER)
    if digest is not None:
        held.add(digest)
    try:
        message = decode(await blobs.get(digest) if digest is not None else payload)
        kept = decode(message.payload) if isinstance(message, Quarantined) else message
    except (SchemaError, BlobMissing):
        return held
    return held | {kept.digest} if isinstance(kept, BlobClaimed) else held


async def _stored(connection: Connection, name: str, sequence: int) -> api.RawStreamMsg | None:
    async def request() -> api.RawStreamMsg | None:
        try:
            return await connection.jetstream.get_msg(name, seq=sequence)
        except nats.js.errors.NotFoundError:
            return None

    return await Patience(connection, f"look at {name} {sequence}").until_answered(request)


async def _deleted(connection: Connection, name: str, sequence: int) -> bool:
    async def request() -> bool:
        try:
            return await connection.jetstream.delete_msg(name, sequence)
        except nats.js.errors.NotFoundError:
            return False

    return await Patience(connection, f"remove {name} {sequence}").until_answered(request)
