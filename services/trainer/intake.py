"""From the experience stream to batches.

Invariant: the composition of every batch is a function of the stream's order and of the ledger, never of timing. A
batch closes when the answers in it account for the experiences of `train_batch_size`: an abandoned task counts for
the experiences that it owed, so that a lost answer can never stall the run.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from services.trainer.ledger import ABANDONED, Entry, Ledger, Numbers


@dataclass
class Batch:
    """The groups of one optimizer step, in stream order, with the entries that it makes in the ledger.

    `is_short` where it was closed before it was full.
    """

    groups: list[GroupSampled] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    owed: int = 0
    is_short: bool = False

    @property
    def experiences(self) -> list[Experience]:
        return [experience for group in self.groups for experience in group.experiences]


class Intake:
    """Gathers messages, offered in stream order, into batches.

    A batch also closes, before it is full, at the sequences `short_batches`: where it did so the first time.
    """

    def __init__(self, ledger: Ledger, train_batch_size: int, run: str, short_batches: Iterable[int] = ()) -> None:
        self._ledger = ledger
        self._size = train_batch_size
        self._run = run
        self._short_batches = {*ledger.short_batches, *short_batches}
        self._open = Batch()
        self._closed: deque[Batch] = deque()
        self._pending = Numbers(ledger.ordinals.floor, set(ledger.ordinals.above))
        self._abandoned = set(ledger.abandoned)
        self._steps = ledger.step

    @property
    def ready(self) -> int:
        """Batches that are closed and wait to be taken."""
        return len(self._closed)

    @property
    def gathered(self) -> int:
        """Experiences that the open batch accounts for."""
        return self._open.owed

    @property
    def answered(self) -> Numbers:
        """The ordinals of tasks that are answered, trained on or not."""
        return self._pending

    @property
    def steps(self) -> int:
        """Optimizer steps that everything offered so far makes: no weights of a higher version can have sampled it."""
        return self._steps

    def offer(self, sequence: int, message: Message | None) -> None:
        """Take the next message of the stream; None where it cannot be used."""
        if sequence in self._ledger.sequences:
            return
        if not isinstance(message, GroupSampled | TaskAbandoned) or message.run != self._run:
            self._open.entries.append(Entry(sequence, None, "quarantined"))
        elif self._is_duplicate(message):
            self._open.entries.append(Entry(sequence, message.task.ordinal, "duplicate", _experiences(message)))
        else:
            self._accept(sequence, message)
        if sequence in self._short_batches and self._open.entries:
            self._close(is_short=True)

    def take(self) -> Batch:
        """The oldest closed batch; with none closed, what has been gathered so far."""
        if not self._closed:
            self._close(is_short=True)
        return self._closed.popleft()

    def commit(self, batch: Batch, step: int) -> None:
        """Enter a batch whose step is done."""
        self._ledger.record(batch.entries)
        self._ledger.step = step
        last = batch.entries[-1].sequence if batch.entries else 0
        if batch.is_short and last and last not in self._ledger.short_batches:
            self._ledger.short_batches.append(last)

    def _is_duplicate(self, message: GroupSampled | TaskAbandoned) -> bool:
        """A second answer. One that comes after all to an abandoned task is its first."""
        ordinal = message.task.ordinal
        is_late = isinstance(message, GroupSampled) and ordinal in self._abandoned
        return ordinal in self._pending and not is_late

    def _accept(self, sequence: int, message: GroupSampled | TaskAbandoned) -> None:
        ordinal = message.task.ordinal
        self._pending.add([ordinal])
        if isinstance(message, TaskAbandoned):
            self._abandoned.add(ordinal)
            self._open.entries.append(Entry(sequence, ordinal, ABANDONED, message.repeat_times))
            self._open.owed += message.repeat_times
        else:
            self._abandoned.discard(ordinal)
            tokens = sum(experience.response_length for experience in message.experiences)
            self._open.groups.append(message)
            self._open.entries.append(Entry(sequence, ordinal, "trained", len(message.experiences), tokens))
            self._open.owed += max(message.repeat_times, len(message.experiences))
        if self._open.owed >= self._size:
            self._close(is_short=False)

    def _close(self, is_short: bool) -> None:
        self._open.is_short = is_short
        self._steps += self._open.owed > 0
        self._closed.append(self._open)
        self._open = Batch()


def _experiences(message: GroupSampled | TaskAbandoned) -> int:
    return len(message.experiences) if isinstance(message, GroupSampled) else 0
