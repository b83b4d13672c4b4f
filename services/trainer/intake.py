"""From the experience stream to batches.

Invariant: the composition of every batch is a function of the stream's order, of the ledger and of the pipeline, never
of timing. A batch closes when the answers in it account for the experiences of `train_batch_size`: an abandoned task
counts for the experiences that it owed, so that a lost answer can never stall the run. What the pipeline filters does
not count, as far as `Pipeline.refill` goes: further answers take its place. Where a rule of reuse is given, groups
that were trained on before are added to a batch when it closes; none is waited for.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from services.config.reuse import ReuseRule
from services.trainer.ledger import ABANDONED, FILTERED, Entry, Ledger, Numbers
from services.trainer.pipeline.outcome import OperatorFailed
from services.trainer.pipeline.pipeline import WITHOUT_OPERATORS, Passed, Pipeline
from services.trainer.reuse.pool import NOTHING_DRAWN, Drawn
from services.trainer.reuse.reserve import Reserve


@dataclass
class Batch:
    """The groups of one optimizer step, in stream order, as the pipeline leaves them, with the entries that it makes in
    the ledger.

    `owed` are the experiences that it accounts for, `made_up` those that were filtered and left to others to make up
    for. `metrics` are what the pipeline says of each group. `is_short` where it was closed before it was full.
    `experts` are rows of data that are trained beside the groups; they come from no stream, and make no entries.
    `drawn` says which of the groups are trained on again, and what that makes of the pool.
    """

    groups: list[GroupSampled] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    owed: int = 0
    made_up: int = 0
    metrics: list[Mapping[str, float]] = field(default_factory=list)
    is_short: bool = False
    experts: list[GroupSampled] = field(default_factory=list)
    drawn: Drawn = NOTHING_DRAWN

    @property
    def experiences(self) -> list[Experience]:
        return [experience for group in self.groups for experience in group.experiences]

    @property
    def uses(self) -> list[int]:
        """How often each of the experiences is trained on with this step; those that are used again come first."""
        again = [group.uses for group in self.drawn.reused for _ in range(group.experiences)]
        return again + [1] * (len(self.experiences) - len(again))


class Intake:
    """Gathers messages, offered in stream order, into batches.

    `train_batch_size` counts what is fresh: experiences that no step before has had. A batch also closes, before it is
    full, at the sequences `short_batches`: where it did so the first time.
    """

    def __init__(
        self,
        ledger: Ledger,
        train_batch_size: int,
        run: str,
        short_batches: Iterable[int] = (),
        pipeline: Pipeline = WITHOUT_OPERATORS,
        reuse: ReuseRule | None = None,
    ) -> None:
        self._ledger = ledger
        self._size = train_batch_size
        self._run = run
        self._pipeline = pipeline
        self._rule = reuse
        self._reserve = Reserve(reuse, ledger.reuse.pool) if reuse else None
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

    @property
    def may_reuse(self) -> bool:
        """Whether there is a rule by which experiences are trained on more than once."""
        return self._rule is not None

    @property
    def lacking(self) -> list[int]:
        """The sequences, in order, of groups that the ledger holds and that may be trained on again: to be restored
        before anything is offered."""
        return self._reserve.lacking if self._reserve else []

    def restore(self, sequence: int, message: Message | None) -> None:
        """Take a group again that is in the ledger.

        Raises:
            OperatorFailed: the pipeline cannot work on it any more.
            ReserveLost: it is not what the ledger says.
        """
        if self._reserve is not None and isinstance(message, GroupSampled):
            self._reserve.restore(sequence, message, self._pipeline)

    def offer(self, sequence: int, message: Message | None, rule: str | None = None) -> None:
        """Take the next message of the stream; None where it cannot be used. By `rule`, a whole one is left out.

        Raises:
            OperatorFailed: the pipeline cannot work on it.
        """
        if sequence in self._ledger.sequences:
            return
        if not isinstance(message, GroupSampled | TaskAbandoned) or message.run != self._run:
            self._open.entries.append(Entry(sequence, None, "quarantined"))
        elif self._is_duplicate(message):
            self._open.entries.append(Entry(sequence, message.task.ordinal, "duplicate", _experiences(message)))
        elif rule is not None:
            self._leave_out(sequence, message, rule)
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
        if batch.owed:
            self._ledger.reused(step, self._rule, batch.drawn)
        self._ledger.step = step
        last = batch.entries[-1].sequence if batch.entries else 0
        if batch.is_short and last and last not in self._ledger.short_batches:
            self._ledger.short_batches.append(last)

    def _is_duplicate(self, message: GroupSampled | TaskAbandoned) -> bool:
        """A second answer. One that comes after all to an abandoned task is its first."""
        ordinal = message.task.ordinal
        is_late = isinstance(message, GroupSampled) and ordinal in self._abandoned
        return ordinal in self._pending and not is_late

    def _leave_out(self, sequence: int, message: GroupSampled | TaskAbandoned, rule: str) -> None:
        """Others come in its place: it does not count in the batch."""
        ordinal, experiences = message.task.ordinal, _experiences(message)
        self._pending.add([ordinal])
        self._open.entries.append(Entry(sequence, ordinal, FILTERED + rule, experiences, 0, {rule: experiences}))

    def _accept(self, sequence: int, message: GroupSampled | TaskAbandoned) -> None:
        if isinstance(message, TaskAbandoned):
            self._give_up(sequence, message)
        else:
            passed = self._passed(sequence, message)  # first: what an operator cannot work on is not answered
            self._hear(message)
            self._abandoned.discard(message.task.ordinal)
            self._gather(sequence, message, passed)
        if self._open.owed >= self._size:
            self._close(is_short=False)

    def _hear(self, message: GroupSampled | TaskAbandoned) -> None:
        self._pending.add([message.task.ordinal])
        if self._reserve is not None:
            self._reserve.hear(message)

    def _give_up(self, sequence: int, message: TaskAbandoned) -> None:
        self._hear(message)
        self._abandoned.add(message.task.ordinal)
        self._open.entries.append(Entry(sequence, message.task.ordinal, ABANDONED, message.repeat_times))
        self._open.owed += message.repeat_times

    def _gather(self, sequence: int, group: GroupSampled, passed: Passed) -> None:
        """Take of a group what the pipeline leaves."""
        self._open.entries.append(_entry(sequence, group.task.ordinal, passed))
        self._open.metrics.append(passed.metrics)
        if passed.kept:
            is_as_it_was = tuple(map(id, passed.kept)) == tuple(map(id, group.experiences))
            self._open.groups.append(group if is_as_it_was else group.model_copy(update={"experiences": passed.kept}))
            if self._reserve is not None:
                self._reserve.add(sequence, self._open.groups[-1])
        left = self._pipeline.refill * self._size - self._open.made_up
        made_up = min(sum(passed.filtered.values()), left)
        self._open.made_up += made_up
        self._open.owed += max(group.repeat_times, len(group.experiences)) - made_up

    def _passed(self, sequence: int, group: GroupSampled) -> Passed:
        try:
            return self._pipeline.passed(group.experiences, self._steps + 1)
        except OperatorFailed as error:
            raise OperatorFailed(
                f"{error} (task {group.task.task_id}, sequence {sequence} of the experience stream): correct the "
                "operator, or data_processor.experience_pipeline.operators, and start the trainer again"
            ) from error

    def _close(self, is_short: bool) -> None:
        self._open.is_short = is_short
        self._steps += self._open.owed > 0
        if self._reserve is not None:
            self._refill(self._reserve)
        self._closed.append(self._open)
        self._open = Batch()

    def _refill(self, reserve: Reserve) -> None:
        """Add what is trained on again, in stream order: it lies before all that is fresh."""
        if self._open.owed == 0:
            reserve.pass_over()
            return
        refilled = reserve.refill(self._steps)
        self._open.groups[:0] = refilled.groups
        self._open.drawn = refilled.drawn


def _experiences(message: GroupSampled | TaskAbandoned) -> int:
    return len(message.experiences) if isinstance(message, GroupSampled) else 0


def _entry(sequence: int, ordinal: int, passed: Passed) -> Entry:
    tokens = sum(experience.response_length for experience in passed.kept)
    if passed.kept:
        return Entry(sequence, ordinal, "trained", len(passed.kept), tokens, passed.filtered)
    last = list(passed.filtered)[-1]
    return Entry(sequence, ordinal, FILTERED + last, sum(passed.filtered.values()), 0, passed.filtered)
