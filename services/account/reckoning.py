"""The account of a run: the fates of its stream held against the ledger, and every number on which they disagree.

Invariant: `lost` and `twice` are 0 and `disagreements` is empty exactly where the ledger holds what the stream says.
Pure: messages go in, in stream order, and an `Account` comes out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from services.account.books import Books
from services.account.fates import DUPLICATE, QUARANTINED, Fate, Fates, Seen, Tally, answers_filtered
from services.account.uses import Apart
from services.trainer.ledger import Numbers
from services.trainer.pipeline.pipeline import WITHOUT_OPERATORS, Pipeline

_NAMED = 12


@dataclass
class ExplorerTally:
    """What one explorer has published: groups, of which `redelivered` came from a task that had been delivered before,
    abandoned tasks, and experiences."""

    groups: int = 0
    abandoned: int = 0
    experiences: int = 0
    trained: int = 0
    filtered: int = 0
    duplicates: int = 0
    waiting: int = 0
    redelivered: int = 0


@dataclass(frozen=True)
class TaskTally:
    """What became of the tasks. `waiting` are released and neither answered nor given up; of these, `queued` are in
    the queue or in an explorer's hands, `quarantined` have an answer that could not be used, and `missing` are neither:
    the synchronizer releases them anew."""

    released: int = 0
    answered: int = 0
    abandoned: int = 0
    waiting: int = 0
    queued: int = 0
    quarantined: int = 0
    missing: int = 0
    reissued: int = 0


@dataclass(frozen=True)
class ReuseTally:
    """Experiences that were trained on again, as far as the stream tells: `uses` by the number of the use, from 2;
    `staleness` their tokens as in `Account`; `held` those that may be again."""

    uses: dict[int, int]
    staleness: dict[int, int]
    held: int

    def as_json(self) -> dict[str, Any]:
        return {
            "uses": {str(number): experiences for number, experiences in sorted(self.uses.items())},
            "staleness": {str(steps): tokens for steps, tokens in sorted(self.staleness.items())},
            "held": self.held,
        }


@dataclass(frozen=True)
class Account:
    """The whole account. Experiences: `published` = trained + filtered (but for what abandoned tasks owed) +
    duplicates + withheld + waiting, and what is lost.

    `tally` holds what the stream says is in the ledger; `uncommitted` of the `waiting` are in the trainer's weights but
    in no checkpoint yet. `twice` is trained on again though no rule of reuse that the ledger declares says so.
    `staleness` counts tokens by the step that trained them first, less 1, less the version that sampled them.
    `independent_from` is the first sequence whose fate was worked out without the ledger in force.
    """

    step: int
    source: str
    independent_from: int
    tasks: TaskTally
    tally: Tally
    published: int
    tokens_sampled: int
    waiting: int
    uncommitted: int
    lost: int
    twice: int
    staleness: dict[int, int]
    reuse: ReuseTally
    explorers: dict[str, ExplorerTally]
    most_attempts: int
    disagreements: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return self.lost == 0 and self.twice == 0 and not self.disagreements

    def as_json(self) -> dict[str, Any]:
        return {
            "is_sound": self.is_sound,
            "ledger": {"step": self.step, "source": self.source, "independent_from": self.independent_from},
            "tasks": asdict(self.tasks),
            "experiences": self.experiences(),
            "tokens": {
                "sampled": self.tokens_sampled,
                "trained": self.tally.tokens_trained,
                "reused": self.tally.tokens_reused,
            },
            "reuse": self.reuse.as_json(),
            "staleness": {str(steps): tokens for steps, tokens in sorted(self.staleness.items())},
            "explorers": {name: asdict(tally) for name, tally in sorted(self.explorers.items())},
            "redeliveries": {
                "groups": sum(tally.redelivered for tally in self.explorers.values()),
                "most_attempts": self.most_attempts,
            },
            "disagreements": list(self.disagreements),
            "notes": list(self.notes),
        }

    def experiences(self) -> dict[str, Any]:
        """`quarantined` counts messages, the others experiences; `withheld` those in quarantined messages that can be
        read."""
        return {
            "published": self.published,
            "trained": self.tally.trained,
            "reused": self.tally.reused,
            "filtered": dict(self.tally.filtered),
            "quarantined": self.tally.quarantined,
            "withheld": self.tally.withheld,
            "duplicates": self.tally.duplicates,
            "waiting": self.waiting,
            "uncommitted": self.uncommitted,
            "lost": self.lost,
            "twice": self.twice,
        }


class Reckoning:
    """Takes the messages of a stream that begins at sequence `first`, in order, and closes the account.

    `refused` are the sequences of messages that can be read but were quarantined; `in_weights_below` is the first
    sequence that the running trainer has not trained on yet; `pipeline` is that of the messages.
    """

    def __init__(
        self,
        books: Books,
        train_batch_size: int,
        first: int = 1,
        refused: Iterable[int] = (),
        in_weights_below: int = 0,
        pipeline: Pipeline = WITHOUT_OPERATORS,
    ) -> None:
        self._books = books
        self._ledger = books.ledger
        self._size = train_batch_size
        self._base = books.base(first)
        self._in_weights_below = in_weights_below
        marks = [kept for kept in books.kept if kept.step > self._base.step]
        short, reuse = self._ledger.short_batches, self._ledger.reuse
        self._fates = Fates(train_batch_size, self._base, refused, short, marks, pipeline, reuse)
        self._tally = Tally.after(self._base)
        self._held = Numbers(self._base.ordinals.floor, set(self._base.ordinals.above))
        self._next = self._ledger.sequences.floor
        self._gone: list[int] = []
        self._passed_over: list[int] = []
        self._unlisted: list[Seen] = []
        self._answers: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[int, int] = {}
        self._withheld: set[int] = set()
        self._waiting_experiences = self._uncommitted = self._tokens = self._repeated = 0
        self._staleness: Counter[int] = Counter()
        self._explorers: dict[str, ExplorerTally] = defaultdict(ExplorerTally)
        self._most_attempts = 0

    def take(self, message: Seen) -> None:
        """The next message."""
        self._look_for_gaps(message.sequence)
        is_held = message.sequence in self._ledger.sequences
        fate = None
        if message.sequence in self._base.sequences:
            self._fates.restore(message)
        else:
            fate = self._fates.of(message, is_held)
        if is_held:
            self._check(message)
        elif message.sequence < self._books.end:
            self._passed_over.append(message.sequence)
        if fate is not None and is_held:
            self._enter(fate)
        elif fate is not None:
            self._wait(fate)
        self._describe(message, fate, is_held)

    def close(self, last: int, released: int = 0, queued: int = 0, reissued: int = 0) -> Account:
        """The account, where `last` is the last sequence that the stream has given out."""
        self._look_for_gaps(last + 1)
        self._fates.finish()
        uses, counts = self._fates.uses, self._ledger.counts
        self._tally.reused, self._tally.tokens_reused = uses.reused, uses.tokens
        if not self._books.knows_ordinals:  # nor the rules of reuse
            self._tally.reused, self._tally.tokens_reused = counts.reused, counts.tokens_reused
        unlisted = sum(message.experiences for message in self._unlisted)
        missed = self._tally.accounted - counts.trained - answers_filtered(counts.filtered)
        phantoms = set(self._phantoms())
        shadowed = sum(experiences for ordinal, experiences in self._waiting.items() if ordinal in phantoms)
        return Account(
            step=self._ledger.step,
            source=self._books.source,
            independent_from=self._base.sequences.floor,
            tasks=self._tasks(released, queued, reissued),
            tally=self._tally,
            published=self._tally.published + self._waiting_experiences,
            tokens_sampled=self._tokens,
            waiting=self._waiting_experiences,
            uncommitted=self._uncommitted,
            lost=max(unlisted, missed) + shadowed + len(self._gone),
            twice=max(0, -missed) + self._repeated + max(0, counts.reused - self._tally.reused),
            staleness=dict(self._staleness),
            reuse=ReuseTally(dict(uses.experiences), dict(uses.staleness), uses.pool.experiences),
            explorers=dict(self._explorers),
            most_attempts=self._most_attempts,
            disagreements=tuple(self._disagreements(last)),
            notes=tuple(self._notes()),
        )

    def _look_for_gaps(self, sequence: int) -> None:
        """What the stream no longer holds must be in the ledger."""
        self._gone += [number for number in range(self._next, sequence) if number not in self._ledger.sequences]
        self._next = max(self._next, sequence + 1)

    def _check(self, message: Seen) -> None:
        """A message that the ledger holds, and its task."""
        ordinal = message.ordinal
        if ordinal is None or self._fates.is_quarantined(message) or not self._books.knows_ordinals:
            return
        if ordinal not in self._ledger.ordinals:
            self._unlisted.append(replace(message, answers=()))
        if ordinal in self._books.repeated.get("ordinals", ()):
            self._repeated += message.experiences

    def _enter(self, fate: Fate) -> None:
        message = fate.seen
        self._tally.add(fate)
        if message.ordinal is not None and fate.name != QUARANTINED:
            self._held.add([message.ordinal])
            self._answers[message.ordinal].append(message.sequence)
        for kept in fate.kept:
            self._staleness.update((fate.step - 1 - kept.token_versions).tolist())

    def _wait(self, fate: Fate) -> None:
        message = fate.seen
        self._waiting_experiences += message.experiences
        if message.sequence < self._in_weights_below:
            self._uncommitted += message.experiences
        if message.ordinal is not None and fate.name != QUARANTINED:
            self._waiting[message.ordinal] = self._waiting.get(message.ordinal, 0) + message.experiences

    def _describe(self, message: Seen, fate: Fate | None, is_held: bool) -> None:
        if message.ordinal is None:
            return
        if self._fates.is_quarantined(message):
            self._withheld.add(message.ordinal)
        self._tokens += message.tokens
        self._most_attempts = max(self._most_attempts, message.attempt)
        tally = self._explorers[message.explorer]
        tally.groups += message.is_answer
        tally.abandoned += not message.is_answer
        tally.experiences += message.experiences
        tally.redelivered += message.is_answer and message.attempt > 1
        tally.waiting += 0 if is_held else message.experiences
        if fate is not None and is_held:
            tally.trained += len(fate.kept)
            tally.filtered += sum(fate.filtered.values())
            tally.duplicates += message.experiences if fate.name == DUPLICATE else 0

    def _tasks(self, released: int, queued: int, reissued: int) -> TaskTally:
        answered, abandoned = self._fates.answered, len(self._fates.abandoned)
        waiting = max(0, released - len(answered))
        refused = sum(ordinal not in answered for ordinal in self._withheld)
        return TaskTally(
            released=released,
            answered=len(answered) - abandoned,
            abandoned=abandoned,
            waiting=waiting,
            queued=min(queued, waiting),
            quarantined=min(refused, waiting),
            missing=max(0, waiting - queued - refused),
            reissued=reissued,
        )

    def _phantoms(self) -> list[int]:
        """Tasks of the ledger that nothing it holds has answered."""
        return _without(self._ledger.ordinals, self._held) if self._books.knows_ordinals else []

    def _disagreements(self, last: int) -> Iterator[str]:
        end = self._books.end
        yield from _named(
            [
                f"task {m.ordinal}, answered at sequence {m.sequence} ({m.experiences} experiences)"
                for m in self._unlisted
            ],
            "in the ledger by sequence but not by task",
        )
        yield from _named(
            [f"task {n}" for n in self._phantoms()], "in the ledger, and no message that it holds answers it"
        )
        yield from _named([f"sequence {n}" for n in self._passed_over], f"not in the ledger, though {end} after it is")
        yield from _named([f"sequence {n}" for n in self._gone], "gone from the stream, and in no ledger")
        for kind, numbers in self._books.repeated.items():
            yield from _named([f"{kind.removesuffix('s')} {n}" for n in numbers], "more than once in the ledger")
        if end > last:
            yield f"the ledger holds sequences up to {end}, and the stream ends at {last}: it is not this run's stream"
        yield from self._counts_apart()
        yield from _named(
            [f"sequence {each.group.sequence} (task {each.group.ordinal})" + _uses_of(each) for each in self._apart()],
            "the rule of reuse does not say so",
        )
        if self._books.knows_ordinals and self._ledger.abandoned != self._tally.owed:
            apart = sorted(set(self._ledger.abandoned.items()) ^ set(self._tally.owed.items()))
            yield from _named(
                [f"task {ordinal}" for ordinal in sorted({ordinal for ordinal, _ in apart})],
                "abandoned by the ledger and not by the stream, or the other way round",
            )

    def _apart(self) -> list[Apart]:
        return self._fates.uses.apart if self._books.knows_ordinals else []

    def _counts_apart(self) -> Iterator[str]:
        written, found = self._ledger.counts.model_dump(), self._tally.counts().model_dump()
        for name, number in written.items():
            if number != found[name]:
                yield f"{name}: the ledger counts {number}, the stream makes {found[name]}"
        if self._ledger.counts.trained > self._tally.trained:
            again = [f"task {o}, at {', '.join(map(str, s))}" for o, s in self._answers.items() if len(s) > 1]
            yield from _named(again, "answered more than once in what the ledger holds: one of these was trained twice")

    def _notes(self) -> Iterator[str]:
        if self._base.sequences.floor > 1:
            before = self._base.sequences.floor
            yield (
                f"up to sequence {before - 1} the counts are those of the checkpoint of step {self._base.step}: "
                "the beginning of the stream has been freed"
            )
        for sequence, made, told in self._fates.misplaced:
            yield (
                f"up to sequence {sequence - 1} the stream makes {made} batches of {self._size}, and the checkpoint "
                f"says step {told} (has buffer.train_batch_size changed?): staleness there is off by the difference"
            )


def _uses_of(each: Apart) -> str:
    told = f"used {each.told} times" if each.told else "not to be used again"
    made = f"{each.made} times" if each.made else "not again"
    return f", at step {each.step} {told} by the ledger and {made} by the stream"


def _without(numbers: Numbers, others: Numbers) -> list[int]:
    below = [number for number in range(others.floor, numbers.floor) if number not in others]
    return below + sorted(number for number in numbers.above if number not in others)


def _named(found: list[str], what: str) -> Iterator[str]:
    """Each of `found` with what is wrong with it; of many, the first."""
    for name in found[:_NAMED]:
        yield f"{name}: {what}"
    if len(found) > _NAMED:
        yield f"{len(found) - _NAMED} more: {what}"
