"""The quarantine in a person's hands: what lies there, what it holds, and how it goes back or goes away.

Nothing that can be read leaves it without a trace: where an answer was retried or dropped, a receipt stays in the
store, so that an account of the run still knows its fate.
"""

import json
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from bus.errors import BlobMissing
from bus.port import Bus
from bus.subjects import SUBJECTS, Stream
from schemas.blobs import BlobClaimed
from schemas.codec import decode
from schemas.errors import SchemaError
from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.message import Message
from schemas.reports import EvaluationReported, MetricsReported, Quarantined
from schemas.state import MemberSeen, ReleaseProgress, TrainProgress
from schemas.tasks import TaskReleased
from services.config.tree import RunConfig
from services.runtime.keys import MEMBERS, RELEASE, TRAIN, receipt_key
from services.trainer.backends.port import Vocabulary
from services.trainer.checks import Limits, fault

_TAKERS: dict[str, tuple[str, ...]] = {
    Stream.TASKS: ("explorer", "trainer"),
    Stream.EXPERIENCES: ("trainer",),
    Stream.METRICS: ("monitor",),
}


class CannotRetry(Exception):
    """The message would not be taken; why, and what to do instead."""


@dataclass(frozen=True)
class Entry:
    """One message of the quarantine, by its `number` there. `kept` is None where somebody published garbage into it."""

    number: int
    kept: Quarantined | None
    subject: str
    payload: bytes
    reason: str
    at: float

    @property
    def stream(self) -> str:
        return self.kept.stream if self.kept else str(Stream.QUARANTINE)

    @property
    def publisher(self) -> str:
        """Who published it, as far as its subject says: an explorer, a member, a taskset."""
        return (self.kept.subject if self.kept else self.subject).rpartition(".")[2]

    @property
    def schema(self) -> str:
        """The schema that it says it has, with its version; empty where it says none."""
        envelope = unpacked(self.payload)
        if not isinstance(envelope, dict) or not isinstance(envelope.get("schema"), str):
            return ""
        return f"{envelope['schema'][:60]} {str(envelope.get('version', '?'))[:12]}"

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the payload."""
        kept = self.kept
        return {
            "number": self.number,
            "at": self.at,
            "stream": self.stream,
            "subject": kept.subject if kept else self.subject,
            "sequence": kept.sequence if kept else self.number,
            "publisher": self.publisher,
            "quarantined_by": kept.origin if kept else "",
            "attempts": kept.attempts if kept else 0,
            "message_id": kept.message_id if kept else "",
            "schema": self.schema,
            "size_bytes": len(self.payload),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Contents:
    """What an entry holds: the message where it can be read now, else why not. `payload` is that of the blob where the
    entry is a claim on one that is there."""

    message: Message | None
    error: str | None
    payload: bytes
    digest: str | None = None


async def entries(bus: Bus, numbers: Collection[int] = (), reason: str = "", stream: str = "") -> AsyncIterator[Entry]:
    """What lies in the quarantine, the oldest first: those `numbers`, or all; whose reason holds `reason`."""
    start, end = (min(numbers), max(numbers)) if numbers else (1, None)
    async for delivery in bus.read(Stream.QUARANTINE, start=start, follow=False):
        if end is not None and delivery.sequence > end:
            return
        kept = delivery.message if isinstance(delivery.message, Quarantined) else None
        found = Entry(
            number=delivery.sequence,
            kept=kept,
            subject=delivery.subject,
            payload=kept.payload if kept else delivery.payload,
            reason=kept.reason if kept else f"published into the quarantine itself: {delivery.error}",
            at=kept.at if kept and kept.at else delivery.stored_at,
        )
        if (not numbers or found.number in numbers) and reason in found.reason and stream in ("", found.stream):
            yield found


async def opened(bus: Bus, entry: Entry) -> Contents:
    """The message in an entry, read by the schemas of today."""
    payload, digest = entry.payload, None
    try:
        message = decode(payload)
        if isinstance(message, BlobClaimed):
            digest = message.digest
            payload = await bus.get_blob(digest)
            message = decode(payload)
        place = SUBJECTS.get(type(message))
        if place is None or str(place[0]) != entry.stream:
            raise SchemaError(f"{message.schema_name} has no place on the stream of {entry.stream}")
        if getattr(message, "run", bus.run) != bus.run:
            raise SchemaError(f"it is of run {getattr(message, 'run', '')!r}")
        return Contents(message, None, payload, digest)
    except (SchemaError, BlobMissing) as error:
        return Contents(None, str(error), payload, digest)


def unpacked(payload: bytes) -> Any:
    """The values in a payload, whatever its schema; None where it is not msgpack."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except Exception:  # noqa: BLE001 - the unpacker's own errors share no base class
        return None


async def drop(bus: Bus, entry: Entry) -> None:
    """Take an entry away for good, with the blob that it alone holds."""
    await _leave_receipt(bus, entry, await opened(bus, entry), "dropped by hand")
    await bus.remove(Stream.QUARANTINE, entry.number)


class Retrying:
    """Puts messages back where they came from. What it knows of the run is as of `begin`."""

    def __init__(
        self,
        bus: Bus,
        limits: Limits,
        train: TrainProgress | None,
        release: ReleaseProgress | None,
        answered: dict[str, int],
        services: frozenset[str],
    ) -> None:
        self._bus = bus
        self._limits = limits
        self._newest_version = train.step if train else 0
        self._reissued = {each.ordinal: each.times for each in release.reissued} if release else {}
        self._answered = answered
        self._services = services

    @classmethod
    async def begin(cls, bus: Bus, config: RunConfig) -> "Retrying":
        train, release = await bus.get(TRAIN), await bus.get(RELEASE)
        members = [entry.message for entry in await bus.entries(MEMBERS)]
        return cls(
            bus,
            Limits(_vocabulary(config), config.max_model_len),
            train.message if train and isinstance(train.message, TrainProgress) else None,
            release.message if release and isinstance(release.message, ReleaseProgress) else None,
            await _answered(bus),
            frozenset(member.service for member in members if isinstance(member, MemberSeen)),
        )

    async def retry(self, entry: Entry) -> str:
        """Publish an entry's message again and take the entry away. Returns what was done, in words.

        Raises:
            CannotRetry: it would be refused again; the entry stays.
        """
        contents = await opened(self._bus, entry)
        if entry.kept is None or contents.message is None:
            raise CannotRetry(contents.error or entry.reason)
        words = await self._published(entry, contents.message)
        await _leave_receipt(self._bus, entry, contents, "retried by hand")
        await self._bus.remove(Stream.QUARANTINE, entry.number)
        return words

    def absent(self, stream: str) -> list[str]:
        """The services that would take what goes back to `stream`, and are not members of the run now."""
        return [service for service in _TAKERS.get(stream, ()) if service not in self._services]

    async def _published(self, entry: Entry, message: Message) -> str:
        if isinstance(message, TaskReleased):
            return await self._released(message)
        if isinstance(message, GroupSampled | TaskAbandoned):
            self._assert_unanswered(message)
            found = fault(message, self._limits, self._newest_version)
            if found is not None:
                raise CannotRetry(f"the trainer would refuse it again: {found}")
        elif not isinstance(message, MetricsReported | EvaluationReported):
            raise CannotRetry(
                f"{message.schema_name} is what its service says of the present: it says it again by itself"
            )
        stored = await self._bus.publish(message, message_id=f"{self._bus.run}:retried:{entry.number}")
        return f"back on the stream of {entry.stream}, at sequence {stored.sequence}"

    async def _released(self, task: TaskReleased) -> str:
        self._assert_unanswered(task)
        number = max(task.retry, self._reissued.get(task.task.ordinal, 0)) + 1
        again = task.model_copy(update={"retry": number, "released_at": time.time()})
        stored = await self._bus.publish(again)
        if stored.is_duplicate:
            return f"task {task.task.ordinal} had been released anew already (retry {number})"
        return f"task {task.task.ordinal} released anew (retry {number})"

    def _assert_unanswered(self, message: TaskReleased | GroupSampled | TaskAbandoned) -> None:
        sequence = self._answered.get(message.task.task_id)
        if sequence is not None:
            raise CannotRetry(
                f"task {message.task.ordinal} has been answered since, at sequence {sequence} of the experience stream:"
                " drop this"
            )


async def refused_answers(bus: Bus) -> set[int]:
    """The sequences of the experience stream that are in quarantine, or were until they were retried or dropped."""
    found = {entry.kept.sequence async for entry in entries(bus, stream=Stream.EXPERIENCES) if entry.kept}
    receipts = [entry.message for entry in await bus.entries(receipt_key(Stream.EXPERIENCES))]
    return found | {receipt.sequence for receipt in receipts if isinstance(receipt, Quarantined)}


async def _answered(bus: Bus) -> dict[str, int]:
    """The tasks with a usable answer in the experience stream, by id, and where it stands. Reads headers only."""
    refused = await refused_answers(bus)
    return {
        outline.headers.get("trinity-task", ""): outline.sequence
        async for outline in bus.outlines(Stream.EXPERIENCES)
        if outline.headers.get("trinity-schema") == GroupSampled.schema_name and outline.sequence not in refused
    }


async def _leave_receipt(bus: Bus, entry: Entry, contents: Contents, what: str) -> None:
    """Keep what an account must know of an answer that can be read, and that the stream alone would call trained."""
    if entry.kept is None or entry.stream != Stream.EXPERIENCES or contents.message is None:
        return
    receipt = entry.kept.model_copy(update={"payload": b"", "reason": f"{what}: {entry.kept.reason}"[:2000]})
    await bus.put(receipt_key(Stream.EXPERIENCES, entry.kept.sequence), receipt)


def _vocabulary(config: RunConfig) -> Vocabulary | None:
    """How many tokens the model has, where its files are here; the trainer looks at the tokenizer too."""
    if config.rollout_model.engine_type == "fake":
        return None
    try:
        told = json.loads((Path(config.model.model_path) / "config.json").read_text(encoding="utf-8"))
        size = told["vocab_size"] if "vocab_size" in told else told["text_config"]["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Vocabulary(size=int(size))
