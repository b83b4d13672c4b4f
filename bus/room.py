"""What to do about a stream that takes no more, in words for the log: what stands in the way, and who moves it."""

import nats.errors

from bus.connection import Connection
from bus.retrying import Failure


async def advice(connection: Connection, name: str, kind: Failure) -> str:
    """What a publisher that waits for stream `name` should say."""
    try:
        info = await connection.jetstream.stream_info(name)
    except (nats.errors.Error, OSError):
        if kind is Failure.FULL:
            return "the store is full: give the server more disk (max_file)"
        return f"waiting for the server and its stream {name}"
    if kind is not Failure.FULL:
        return (
            f"the server answers, but does not store into {name}: its disk may be full, or fail (its log says). "
            "Make room on the disk, then restart the server; set max_file below the size of the disk, so that a full "
            "one is refused cleanly"
        )
    size, limit = info.state.bytes, info.config.max_bytes or -1
    if limit <= 0 or size < limit // 2:
        return f"stream {name} holds {size} bytes and the server's store is full: give it more disk (max_file)"
    return (
        f"stream {name} holds {size} of {limit} bytes: what a checkpoint holds is freed "
        "(trainer.save_interval); raise bus.max_experience_bytes to keep more"
    )
