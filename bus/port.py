"""The port: what services may ask of a bus. `bus.jetstream` implements it over NATS JetStream.

Delivery is at least once. An acknowledged publish is stored. Whatever cannot be decoded is quarantined by the bus
itself before the reader sees it, as a `Delivery` whose `message` is None.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.subjects import Stream
from schemas.message import Message
from schemas.state import LeaseHeld

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Stored:
    """The server's word that a message is stored: its stream sequence, and whether it stood there already."""

    sequence: int
    is_duplicate: bool


@dataclass(frozen=True)
class Revised:
    """A value of the key-value store with the revision to compare against."""

    key: str
    message: Message
    revision: int


@dataclass(frozen=True)
class StreamState:
    """How full a stream is. `first` and `last` are sequences; `limit_bytes` is None where there is no limit."""

    messages: int
    size_bytes: int
    first: int
    last: int
    limit_bytes: int | None
    pending: int = 0
    in_hand: int = 0


@dataclass(frozen=True)
class Outline:
    """A message of a stream without its body: `size_bytes` with its headers, `stored_at` in seconds since the epoch."""

    sequence: int
    subject: str
    size_bytes: int
    stored_at: float
    headers: Mapping[str, str]


@dataclass(frozen=True)
class LeaseTerms:
    """How long a task may stay unanswered without a sign of life, and how often it is tried."""

    lease_s: float = 60.0
    max_deliver: int = 4
    max_in_hand: int = 4096


class Delivery(Protocol):
    """One message as read from a stream. `error` says why `message` is None."""

    @property
    def message(self) -> Message | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def sequence(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def stored_at(self) -> float: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...

    async def ack(self) -> None:
        """Done: the message leaves a work queue. Waits for the server's word."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Hand it back, to be delivered again after `delay_s`."""

    async def in_progress(self) -> None:
        """Renew the lease: still working on it."""


class Queue(Protocol):
    """The shared work queue of tasks."""

    async def pull(self, most: int, wait_s: float) -> list[Delivery]:
        """Up to `most` deliveries, the oldest first; an empty list when none came within `wait_s`."""


class Lease(Protocol):
    """A lease in hand. It is renewed in the background until `release`."""

    @property
    def term(self) -> int: ...
    @property
    def is_held(self) -> bool: ...

    async def lost(self) -> None:
        """Returns when the lease is no longer held."""

    async def release(self) -> None: ...


class Bus(Protocol):
    """Everything that a service may ask of the bus, for one run."""

    @property
    def run(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def is_connected(self) -> bool: ...

    async def declare(self) -> None:
        """Make the run's streams, consumers and key-value store, or bring them to the declared form. Idempotent."""

    async def publish(self, message: Message, deadline_s: float | None = None, message_id: str | None = None) -> Stored:
        """Store `message`, on the stream and subject of its type, under the id of its type or under `message_id`.

        Retries with the same id while the server is away or the stream is full, with a log line, until `deadline_s`
        (None: for ever). Messages over the spill limit travel as a claim on a blob.

        Raises:
            StreamFull, PublishTimeout: the deadline passed.
            BusRefused: the server refuses for a lasting reason.
        """

    async def publish_next(self, message: Message, after: int) -> Stored:
        """`publish`, on condition that `after` is the last sequence that its stream has given out.

        Raises:
            RevisionConflict: somebody else has published since.
        """

    async def publish_all(self, messages: Sequence[Message], window: int = 32) -> list[Stored]:
        """`publish` of each, with at most `window` in flight."""

    async def queue(self, tasksets: Sequence[str] = ()) -> Queue:
        """The task queue; only the named tasksets, where some are named."""

    def read(self, stream: Stream, start: int = 1, follow: bool = True) -> AsyncIterator[Delivery]:
        """The stream from sequence `start`, oldest first, gaps skipped, malformed messages included.

        With `follow` it waits for more for ever; otherwise it ends at the sequence that was last when it was called.
        """

    def outlines(self, stream: Stream, start: int = 1) -> AsyncIterator[Outline]:
        """The messages stored now from sequence `start` on, without their bodies. Nothing is decoded."""

    async def last(self, stream: Stream) -> Delivery | None:
        """The newest message of a stream that can be read. Nothing is quarantined by looking."""

    async def state(self, stream: Stream) -> StreamState: ...

    async def purge(self, stream: Stream, up_to: int) -> None:
        """Free the messages with a sequence below `up_to`."""

    async def remove(self, stream: Stream, *sequences: int) -> int:
        """Take single messages out of a stream, with the blobs that they alone held. Returns how many were there."""

    async def put(self, key: str, message: Message, ttl_s: float | None = None) -> int:
        """Set a key of the run's store, whatever stood there; it vanishes after `ttl_s` without renewal."""

    async def get(self, key: str) -> Revised | None: ...

    async def swap(self, key: str, message: Message, revision: int, ttl_s: float | None = None) -> int:
        """Compare-and-set: `revision` is that of the value to replace, 0 for a key that must not exist.

        Raises:
            RevisionConflict: the key has another revision.
        """

    async def delete(self, key: str) -> None: ...

    async def entries(self, prefix: str) -> list[Revised]:
        """All keys that begin with `prefix`, by key."""

    async def lease(self, name: str, holder: str, ttl_s: float, wait: bool = True) -> Lease:
        """Take the lease `name`, waiting for it to fall free when `wait`. Terms grow with every holder.

        Raises:
            LeaseLost: it is held by another and `wait` is False.
        """

    async def lease_holder(self, name: str) -> LeaseHeld | None: ...

    async def quarantine(self, delivery: Delivery, stream: Stream, reason: str) -> None:
        """Keep a copy of a delivery that cannot be used, with the reason. Does not acknowledge it."""

    async def put_blob(self, payload: bytes) -> str:
        """Store bytes of any size in chunks; the digest names them."""

    async def get_blob(self, digest: str) -> bytes:
        """Raises `BlobMissing` when chunks are absent or do not match the digest."""

    async def drop_blob(self, digest: str) -> None: ...

    async def close(self) -> None: ...
