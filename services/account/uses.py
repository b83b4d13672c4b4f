"""The uses of a stream's experiences beyond their first, worked out from the stream and from the rules that the ledger
declares."""

import math
from collections import Counter
from dataclasses import dataclass

from services.trainer.ledger import Ledger
from services.trainer.pipeline.outcome import Experiences
from services.trainer.pipeline.pipeline import Pipeline, oldest_version
from services.trainer.reuse.pool import EMPTY, Pool, Pooled, drawn
from services.trainer.reuse.record import Reuse


@dataclass(frozen=True)
class Apart:
    """A group of which ledger and rule say different things: how often it was used, 0 where it is not to be again."""

    step: int
    group: Pooled
    told: int
    made: int


class Uses:
    """Follows the pool through the steps after `base`, by the rules of `reuse`.

    `reused` and `tokens` count further uses from the beginning of the run; `experiences` those after `base` by the
    number of the use (from 2), and `staleness` their tokens by the step that trained them, less 1, less the version.
    """

    def __init__(self, reuse: Reuse, base: Ledger) -> None:
        self._reuse = reuse
        self._wanted = {group.sequence: group for group in base.reuse.pool.groups}
        self._pool = base.reuse.pool
        self._time = self._pool.time
        self._fresh: list[Pooled] = []
        self._held: dict[int, Experiences] = {}
        self.reused = base.counts.reused
        self.tokens = base.counts.tokens_reused
        self.experiences: Counter[int] = Counter()
        self.staleness: Counter[int] = Counter()
        self.apart: list[Apart] = []

    @property
    def pool(self) -> Pool:
        """After the last step of the ledger."""
        return self._pool

    def restore(self, sequence: int, answers: Experiences, pipeline: Pipeline) -> None:
        """An answer that `base` holds, and that may be used again."""
        known = self._wanted.get(sequence)
        if known is not None and answers:
            kept = pipeline.operated(answers).kept
            self._held[sequence] = tuple(each for each in kept if oldest_version(each) >= known.version)

    def hear(self, made_at: float) -> None:
        """An answer of the open batch, and when it was made."""
        if math.isfinite(made_at):
            self._time = max(self._time, made_at)

    def add(self, sequence: int, ordinal: int, kept: Experiences) -> None:
        """What of an answer of the open batch is trained on."""
        self._fresh.append(Pooled.of(sequence, ordinal, kept))
        self._held[sequence] = kept

    def close(self, step: int) -> None:
        """The open batch has made `step`; None: it made none."""
        rule = self._reuse.rule_at(step)
        if rule is None:
            self._pool, self._held, self._time = EMPTY, {}, EMPTY.time
        else:
            found = drawn(self._pool, rule, self._fresh, step, self._time)
            for group in found.reused:
                self._use(group, step)
            self._pool = found.pool
            self._held = {group.sequence: self._held.get(group.sequence, ()) for group in found.pool.groups}
        self._fresh = []

    def pass_over(self) -> None:
        """The open batch is closed, and makes no step."""
        self._time, self._fresh = self._pool.time, []

    def compare(self, step: int, told: Pool, is_known: bool) -> None:
        """Hold the pool against that of a checkpoint, and go on from the checkpoint's. Where it is not known how the
        stream came to that step, there is nothing to compare."""
        made = {group.sequence: group for group in self._pool.groups}
        said = {group.sequence: group for group in told.groups}
        if is_known:
            self.apart += [
                Apart(step, said.get(sequence) or made[sequence], _uses(said, sequence), _uses(made, sequence))
                for sequence in sorted(made.keys() | said.keys())
                if made.get(sequence) != said.get(sequence)
            ]
        self._pool, self._time, self._fresh = told, told.time, []

    def _use(self, group: Pooled, step: int) -> None:
        self.reused += group.experiences
        self.tokens += group.tokens
        self.experiences[group.uses] += group.experiences
        for each in self._held.get(group.sequence, ()):
            self.staleness.update((step - 1 - each.token_versions).tolist())


def _uses(groups: dict[int, Pooled], sequence: int) -> int:
    return groups[sequence].uses if sequence in groups else 0
