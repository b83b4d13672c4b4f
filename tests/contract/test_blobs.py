"""Bytes of any size by their digest."""

import asyncio
import hashlib
import random

import pytest

from bus.blobs import CHUNK_BYTES
from bus.errors import BlobMissing
from bus.subjects import Stream, chunk_subject, stream_name

RUN = "project/name"


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 20 * CHUNK_BYTES + 5])
async def test_a_blob_comes_back_whole(bus, size):
    payload = random.Random(size).randbytes(size)
    digest = await bus.put_blob(payload)
    assert digest == hashlib.sha256(payload).hexdigest()
    assert await bus.get_blob(digest) == payload


async def test_the_same_bytes_are_stored_once(bus):
    payload = random.Random(0).randbytes(3 * CHUNK_BYTES)
    await asyncio.gather(bus.put_blob(payload), bus.put_blob(payload))
    assert (await bus.state(Stream.BLOBS)).messages == 3


async def test_an_absent_blob_is_a_typed_error(bus):
    for digest in ("0" * 64, "", "*", "not a digest", "trinity.>"):
        with pytest.raises(BlobMissing):
            await bus.get_blob(digest)


async def test_a_missing_chunk_is_a_typed_error(bus, raw):
    digest = await bus.put_blob(random.Random(1).randbytes(4 * CHUNK_BYTES))
    subject = chunk_subject(RUN, digest, 2)
    await raw.jetstream().purge_stream(stream_name(RUN, Stream.BLOBS), subject=subject)
    with pytest.raises(BlobMissing, match="3 of 4"):
        await bus.get_blob(digest)


async def test_a_changed_chunk_is_a_typed_error(bus, raw):
    digest = await bus.put_blob(b"a" * CHUNK_BYTES)
    await raw.jetstream().publish(chunk_subject(RUN, digest, 0), b"b", headers={"trinity-chunks": "1"})
    with pytest.raises(BlobMissing, match="another digest"):
        await bus.get_blob(digest)


async def test_a_dropped_blob_is_gone_and_others_stay(bus):
    kept, gone = await bus.put_blob(b"kept"), await bus.put_blob(b"gone")
    await bus.drop_blob(gone)
    with pytest.raises(BlobMissing):
        await bus.get_blob(gone)
    assert await bus.get_blob(kept) == b"kept"


async def test_trap_dropped_bytes_may_be_stored_again_at_once(bus):
    """A message id survives a purge: chunks with ids would be swallowed as duplicates."""
    digest = await bus.put_blob(b"again")
    await bus.drop_blob(digest)
    assert await bus.put_blob(b"again") == digest
    assert await bus.get_blob(digest) == b"again"


async def test_a_blob_survives_a_server_killed_while_it_is_stored(bus, server, kill, eventually):
    payload = random.Random(2).randbytes(30 * CHUNK_BYTES)
    storing = asyncio.create_task(bus.put_blob(payload))
    await eventually(lambda: has_chunks(bus))
    await kill(server)
    await server.start()
    digest = await asyncio.wait_for(storing, 20.0)
    assert await bus.get_blob(digest) == payload


async def has_chunks(bus) -> bool:
    return (await bus.state(Stream.BLOBS)).messages > 0


async def test_dropping_a_blob_while_it_is_read_does_not_hang_the_reader(bus):
    """The client's object store would wait for ever."""
    digest = await bus.put_blob(random.Random(3).randbytes(30 * CHUNK_BYTES))
    reading = asyncio.create_task(bus.get_blob(digest))
    await bus.drop_blob(digest)
    async with asyncio.timeout(10.0):
        try:
            assert hashlib.sha256(await reading).hexdigest() == digest
        except BlobMissing:
            pass


async def test_reading_leaves_no_consumer_behind_of_which_a_stream_takes_a_thousand(bus, raw):
    digest = await bus.put_blob(b"bytes")
    for _ in range(3):
        assert await bus.get_blob(digest) == b"bytes"
    with pytest.raises(BlobMissing):
        await bus.get_blob("0" * 64)
    assert await raw.jetstream().consumers_info(stream_name(RUN, Stream.BLOBS)) == []
