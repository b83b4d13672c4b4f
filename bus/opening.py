"""From the bytes of a stream to its message. What cannot be opened is quarantined here, and is never fatal."""

import time
from dataclasses import dataclass

from bus.blobs import Blobs
from bus.errors import BlobMissing
from bus.publishing import Publisher
from bus.subjects import SUBJECTS, Stream
from schemas.blobs import BlobClaimed
from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.message import Message
from schemas.reports import Quarantined


@dataclass(frozen=True)
class Opened:
    """A message, or the reason why there is none; and the blob that it was claimed from."""

    message: Message | None
    error: str | None
    digest: str | None = None


class Opener:
    """Opens the messages of one run. One that only `observes` quarantines nothing."""

    def __init__(self, run: str, blobs: Blobs, publisher: Publisher, observes: bool = False, member: str = "") -> None:
        self._run = run
        self._member = member
        self._observes = observes
        self._blobs = blobs
        self._publisher = publisher

    async def open(
        self,
        stream: Stream,
        subject: str,
        sequence: int,
        payload: bytes,
        attempts: int = 0,
        is_kept: bool = True,
        message_id: str = "",
    ) -> Opened:
        """The message in `payload`. A failure is quarantined before this returns, unless not `is_kept`."""
        digest = None
        try:
            message = decode(payload)
            if isinstance(message, BlobClaimed):
                digest = message.digest
                message = decode(await self._blobs.get(digest))
            self._check_place(message, stream)
            return Opened(message, None, digest)
        except (SchemaError, BlobMissing) as error:
            reason = str(error)
        if is_kept and not self._observes and stream is not Stream.QUARANTINE:
            await self.quarantine(stream, subject, sequence, payload, reason, attempts, message_id)
        return Opened(None, reason, digest)

    async def quarantine(
        self,
        stream: Stream,
        subject: str,
        sequence: int,
        payload: bytes,
        reason: str,
        attempts: int = 0,
        message_id: str = "",
    ) -> None:
        kept = Quarantined(
            run=self._run,
            reason=reason[:2000],
            stream=str(stream),
            subject=subject,
            sequence=sequence,
            payload=payload,
            origin=self._member,
            attempts=attempts,
            at=time.time(),
            message_id=message_id,
        )
        await self._publisher.publish(kept)

    def _check_place(self, message: Message, stream: Stream) -> None:
        place = SUBJECTS.get(type(message))
        if place is None or place[0] is not stream:
            raise SchemaError(f"{message.schema_name} has no place on the stream of {stream}", message.schema_name)
        run = getattr(message, "run", self._run)
        if run != self._run:
            raise SchemaError(f"{message.schema_name} of run {run!r} on the bus of {self._run!r}", message.schema_name)
