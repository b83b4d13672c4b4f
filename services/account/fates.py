"""The fate of every message of an experience stream, worked out from the stream alone.

It says by its own few rules what the trainer's ledger must say, so that the two can be held against each other: the
first answer of a task counts, later ones are duplicates; an abandoned task is filtered, unless it is answered later; of
an answer, the experience pipeline filters some or all. What is trained on again is so by the rules that the ledger
declares.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bus.port import Delivery
from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.state import Counts
from services.account.uses import Uses
from services.trainer.ledger import Ledger, Numbers
from services.trainer.pipeline.outcome import Experiences
from services.trainer.pipeline.pipeline import WITHOUT_OPERATORS, Pipeline, counted
from services.trainer.reuse.record import NO_REUSE, Reuse

TRAINED, DUPLICATE, QUARANTINED, ABANDONED = "trained", "duplicate", "quarantined", "abandoned"
FILTERED = "filtered"


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of the stream. `ordinal` is None where it could not be read.

    `owed` is what it counts for in a batch, in experiences, where nothing of it is filtered. `answers` are the
    experiences themselves, `made_at` is when they were (seconds since the epoch).
    """

    sequence: int
    ordinal: int | None = None
    is_answer: bool = False
    experiences: int = 0
    owed: int = 0
    tokens: int = 0
    explorer: str = ""
    attempt: int = 1
    answers: Experiences = ()
    made_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Fate:
    """What a message comes to, and the optimizer step (from 1) whose batch it falls into: `kept` of its experiences
    are trained on, `filtered` counts the others by rule."""

    seen: Seen
    name: str
    step: int
    kept: Experiences = ()
    filtered: Mapping[str, int] = field(default_factory=dict)


def seen(delivery: Delivery, run: str) -> Seen:
    """What the account needs of a delivery of the experience stream."""
    message = delivery.message
    if isinstance(message, TaskAbandoned) and message.run == run:
        return Seen(
            sequence=delivery.sequence,
            ordinal=message.task.ordinal,
            owed=message.repeat_times,
            explorer=message.explorer,
            attempt=message.attempts,
            made_at=message.abandoned_at,
        )
    if not isinstance(message, GroupSampled) or message.run != run:
        return Seen(delivery.sequence)
    return Seen(
        sequence=delivery.sequence,
        ordinal=message.task.ordinal,
        is_answer=True,
        experiences=len(message.experiences),
        owed=max(message.repeat_times, len(message.experiences)),
        tokens=sum(experience.response_length for experience in message.experiences),
        explorer=message.explorer,
        attempt=message.attempt,
        answers=message.experiences,
        made_at=message.finished_at,
    )


class Fates:
    """Gives each message its fate, offered in stream order, beginning after what `base` holds.

    A batch ends when it accounts for `train_batch_size` experiences, and at the sequences `short_batches`. What is
    filtered does not count, up to `Pipeline.refill` batches of it in each. `marks` are the ledgers of
    checkpoints: where the steps do not come out, they are taken over, and the difference is kept in `misplaced` as
    (first sequence that it does not hold, steps by the stream, steps of the checkpoint). What is trained on again by
    the rules of `reuse` is in `uses`.
    """

    def __init__(
        self,
        train_batch_size: int,
        base: Ledger,
        quarantined: Iterable[int] = (),
        short_batches: Iterable[int] = (),
        marks: Iterable[Ledger] = (),
        pipeline: Pipeline = WITHOUT_OPERATORS,
        reuse: Reuse = NO_REUSE,
    ) -> None:
        self._size = train_batch_size
        self._pipeline = pipeline
        self._quarantined = frozenset(quarantined)
        self._short_batches = frozenset(short_batches)
        self._marks = deque(sorted(marks, key=lambda ledger: (ledger.sequences.floor, ledger.step)))
        self._step = base.step
        self._owed = 0
        self._made_up = 0
        self.answered = Numbers(base.ordinals.floor, set(base.ordinals.above))
        self.abandoned = dict(base.abandoned)
        self.misplaced: list[tuple[int, int, int]] = []
        self.uses = Uses(reuse, base)

    def restore(self, message: Seen) -> None:
        """The next message, which `base` holds."""
        self.uses.restore(message.sequence, message.answers, self._pipeline)

    def of(self, message: Seen, is_held: bool = True) -> Fate:
        """The fate of the next message. Of an answer that the ledger does not hold, nothing is filtered yet.

        Raises:
            OperatorFailed: an operator of the pipeline cannot work on it.
        """
        while self._marks and message.sequence >= self._marks[0].sequences.floor:
            self._compare(self._marks.popleft())
        name = self._name(message)
        fate = self._judged(message) if name == TRAINED and is_held else Fate(message, name, self._step + 1)
        if name in (TRAINED, ABANDONED):
            made_up = min(sum(fate.filtered.values()), self._pipeline.refill * self._size - self._made_up)
            self._made_up += made_up
            self._owed += message.owed - made_up
            if is_held:
                self._note(fate)
        if self._owed >= self._size:
            self._close(is_held)
        elif message.sequence in self._short_batches:
            self._close(is_held, is_step=self._owed > 0)
        return fate

    def _note(self, fate: Fate) -> None:
        """An answer that is in the weights."""
        self.uses.hear(fate.seen.made_at)
        if fate.kept and fate.seen.ordinal is not None:
            self.uses.add(fate.seen.sequence, fate.seen.ordinal, fate.kept)

    def _judged(self, message: Seen) -> Fate:
        """What of an answer is trained on at the present step."""
        passed = self._pipeline.passed(message.answers, self._step + 1)
        return Fate(message, TRAINED if passed.kept else FILTERED, self._step + 1, passed.kept, passed.filtered)

    def _close(self, is_held: bool, is_step: bool = True) -> None:
        self._step, self._owed, self._made_up = self._step + is_step, 0, 0
        if is_held and is_step:
            self.uses.close(self._step)
        elif is_held:
            self.uses.pass_over()

    def finish(self) -> None:
        """Compare with the checkpoints that hold the whole stream."""
        while self._marks:
            self._compare(self._marks.popleft())

    def is_quarantined(self, message: Seen) -> bool:
        return message.ordinal is None or message.sequence in self._quarantined

    def _name(self, message: Seen) -> str:
        ordinal = message.ordinal
        if ordinal is None or self.is_quarantined(message):
            return QUARANTINED
        is_late = message.is_answer and ordinal in self.abandoned
        if ordinal in self.answered and not is_late:
            return DUPLICATE
        self.answered.add([ordinal])
        if message.is_answer:
            self.abandoned.pop(ordinal, None)
            return TRAINED
        self.abandoned[ordinal] = message.owed
        return ABANDONED

    def _compare(self, told: Ledger) -> None:
        is_in_place = (self._step, self._owed) == (told.step, 0)
        if not is_in_place:
            self.misplaced.append((told.sequences.floor, self._step, told.step))
            self._step, self._owed, self._made_up = told.step, 0, 0
        self.uses.compare(told.step, told.reuse.pool, is_in_place)


@dataclass
class Tally:
    """Counts of fates, in experiences; `quarantined` counts messages, and `withheld` the experiences in those of them
    that can be read."""

    published: int = 0
    trained: int = 0
    duplicates: int = 0
    quarantined: int = 0
    withheld: int = 0
    tokens_trained: int = 0
    filtered: dict[str, int] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=dict)
    reused: int = 0
    tokens_reused: int = 0

    def add(self, fate: Fate) -> None:
        message = fate.seen
        self.published += message.experiences
        if fate.name in (TRAINED, FILTERED):
            self.trained += len(fate.kept)
            self.tokens_trained += sum(each.response_length for each in fate.kept)
            self._forgive(message.ordinal)
            for rule, count in fate.filtered.items():
                self.filtered = counted(self.filtered, rule, count)
        elif fate.name == DUPLICATE:
            self.duplicates += message.experiences
        elif fate.name == QUARANTINED:
            self.quarantined += 1
            self.withheld += message.experiences
        elif message.ordinal is not None:
            self.filtered = counted(self.filtered, ABANDONED, message.owed)
            self.owed[message.ordinal] = message.owed

    @property
    def accounted(self) -> int:
        """Experiences of answers that are trained on or filtered."""
        return self.trained + answers_filtered(self.filtered)

    def _forgive(self, ordinal: int | None) -> None:
        """A task that is answered after all is not filtered any more."""
        owed = self.owed.pop(ordinal, 0) if ordinal is not None else 0
        left = self.filtered.get(ABANDONED, 0) - owed
        if owed:
            self.filtered = {rule: n for rule, n in {**self.filtered, ABANDONED: left}.items() if n}

    def counts(self) -> Counts:
        """As the ledger writes them."""
        return Counts(
            trained=self.trained,
            filtered=dict(self.filtered),
            quarantined=self.quarantined,
            duplicates=self.duplicates,
            tokens_trained=self.tokens_trained,
            reused=self.reused,
            tokens_reused=self.tokens_reused,
        )

    @classmethod
    def after(cls, base: Ledger) -> "Tally":
        """A tally that goes on from what a ledger has counted."""
        counts = base.counts
        return cls(
            published=counts.trained + counts.duplicates + answers_filtered(counts.filtered),
            trained=counts.trained,
            duplicates=counts.duplicates,
            quarantined=counts.quarantined,
            tokens_trained=counts.tokens_trained,
            filtered=dict(counts.filtered),
            owed=dict(base.abandoned),
        )


def answers_filtered(filtered: Mapping[str, int]) -> int:
    """Experiences of answers that a rule has left out: all but what abandoned tasks owed."""
    return sum(count for rule, count in filtered.items() if rule != ABANDONED)
