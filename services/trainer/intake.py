"""From the experience stream to batches.

Invariant: the composition of every batch is a function of the stream's order and of the ledger, never of timing. A
batch closes when the answers in it account for the experiences of `train_batch_size`: an abandoned task counts for
the experiences that it owed, so that a lost answer can never stall the run.
"""

from collections import deque
from dataclasses import dataclass, field

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from services.trainer.ledger import Entry, Ledger, Numbers


@dataclass
class Batch:
    """The groups of one optimizer step, in stream order, with the entries that it makes in the ledger."""

    groups: list[GroupSampled] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    owed: int = 0

    @property
    def experiences(self) -> list[Experience]:
        return [experience for group in self.groups for experience in group.experiences]


class Intake:
    """Gathers messages, offered in stream order, into batches."""

    def __init__(self, ledger: Ledger, train_batch_size: int, run: str) -> None:
        self._ledger = ledger
        self._size = train_batch_size
        self._run = run
        self._open = Batch()
        self._closed: deque[Batch] = deque()
        self._pending = Numbers(ledger.ordinals.floor, set(ledger.ordinals.above))

    @property
    def ready(self) -> int:
        """Batches that are closed and wait to be taken."""
        return len(self._closed)

    @property
    def answered(self) -> Numbers:
        """The ordinals of tasks that are answered, trained on or not."""
        return self._pending

    def offer(self, sequence: int, message: Message | None) -> None:
        """Take the next message of the stream; None where it could not be decoded."""
        if sequence in self._ledger.sequences:
            return
        if not isinstance(message, GroupSampled | TaskAbandoned) or message.run != self._run:
            self._open.entries.append(Entry(sequence, None, "quarantined"))
        elif message.task.ordinal in self._pending:
            self._open.entries.append(Entry(sequence, message.task.ordinal, "duplicate", _experiences(message)))
        else:
            self._accept(sequence, message)

    def take(self) -> Batch:
        """The oldest closed batch; with none closed, what has been gathered so far."""
        if self._closed:
            return self._closed.popleft()
        batch, self._open = self._open, Batch()
        return batch

    def commit(self, batch: Batch, step: int) -> None:
        """Enter a batch whose step is done."""
        self._ledger.record(batch.entries)
        self._ledger.step = step

    def _accept(self, sequence: int, message: GroupSampled | TaskAbandoned) -> None:
        ordinal = message.task.ordinal
        self._pending.add([ordinal])
        if isinstance(message, TaskAbandoned):
            self._open.entries.append(Entry(sequence, ordinal, "filtered:abandoned", message.repeat_times))
            self._open.owed += message.repeat_times
        else:
            tokens = sum(experience.response_length for experience in message.experiences)
            self._open.groups.append(message)
            self._open.entries.append(Entry(sequence, ordinal, "trained", len(message.experiences), tokens))
            self._open.owed += max(message.repeat_times, len(message.experiences))
        if self._open.owed >= self._size:
            self._closed.append(self._open)
            self._open = Batch()


def _experiences(message: GroupSampled | TaskAbandoned) -> int:
    return len(message.experiences) if isinstance(message, GroupSampled) else 0
