"""The rows of adaptive tasksets: chosen by the pass rates in the experience stream, and recorded before a task that
takes them is released.

Invariant: the row of a task is written once, by compare-and-set, before the task is published, so that a successor
releases the same row for it. What it was chosen by may differ from what a successor would have known: the record
decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt
import structlog

from bus.errors import RevisionConflict
from bus.port import Bus
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from schemas.state import RowsChosen
from services.rollout.difficulty import Difficulty, chosen, unknown
from services.rollout.errors import TasksetError
from services.rollout.mixture import Mixture, is_adaptive, selector_of
from services.rollout.selectors import DIFFICULTY
from services.rollout.tasksets import Taskset
from services.runtime.keys import choice_key
from services.synchronizer.progress import Superseded

log = structlog.get_logger()

CHOICES_KEPT = 65_536
"""Tasks of a taskset whose rows are remembered: those that may still be released again are among them."""

Counts = npt.NDArray[np.int64]


@dataclass
class _Adaptive:
    """What is known of one adaptive taskset. Its tasks from `first` on take `rows`, in `epochs`."""

    taskset: Taskset
    difficulty: Difficulty
    taken: Counts
    sequence: int = 0
    revision: int = 0
    first: int = 0
    rows: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    seen: dict[int, list[float]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The first of its tasks for which no row is chosen."""
        return self.first + len(self.rows)


class Selection:
    """Chooses rows for one leader, of `term`. It is the `Choices` of that leader's mixture."""

    def __init__(self, bus: Bus, term: int) -> None:
        self._bus = bus
        self._term = term
        self._known: dict[str, _Adaptive] = {}

    def chosen(self, taskset: str, nth: int) -> tuple[int, int]:
        """Epoch and row of the `nth` task of a taskset.

        Raises:
            TasksetError: none was chosen, or that is forgotten.
        """
        known = self._known.get(taskset)
        if known is None or not known.first <= nth < known.end:
            held = f"tasks {known.first} to {known.end - 1}" if known else "no task"
            raise TasksetError(taskset, f"no row is recorded for its task {nth}, but for {held}")
        return known.epochs[nth - known.first], known.rows[nth - known.first]

    async def prepare(self, mixture: Mixture, ordinals: Sequence[int]) -> None:
        """See to it that the rows of these tasks are chosen, and recorded.

        Raises:
            Superseded: another leader has chosen rows since.
            TasksetError: the taskset has other rows than those that were chosen from.
        """
        turns = sorted((mixture.turn(ordinal) for ordinal in ordinals), key=lambda turn: turn[1])
        wanted = {taskset.name: (taskset, nth) for taskset, nth in turns if is_adaptive(taskset)}
        for taskset, last in wanted.values():
            known = self._known.get(taskset.name) or await self._loaded(taskset)
            self._known[taskset.name] = known
            if known.end <= last:
                await self._read()
                await self._choose(known, last + 1 - known.end)

    async def _loaded(self, taskset: Taskset) -> _Adaptive:
        """What an earlier leader has recorded, or the beginning."""
        selector = selector_of(taskset)
        features = taskset.features(selector.feature_keys) if selector.feature_keys else None
        start = unknown(len(taskset), features, DIFFICULTY | selector.kwargs)
        fresh = _Adaptive(taskset, start, np.zeros(len(taskset), np.int64))
        held = await self._bus.get(choice_key(taskset.name))
        if held is None:
            return fresh
        fresh.revision = held.revision
        record = held.message
        return _restored(fresh, record) if isinstance(record, RowsChosen) else fresh

    async def _read(self) -> None:
        """The pass rates of what was answered since the last look."""
        start = 1 + min(known.sequence for known in self._known.values())
        async for delivery in self._bus.read(Stream.EXPERIENCES, start=start, follow=False):
            group = delivery.message
            for known in self._known.values():
                if delivery.sequence <= known.sequence:
                    continue
                known.sequence = delivery.sequence
                if isinstance(group, GroupSampled) and group.task.taskset == known.taskset.name:
                    _note(known, group)

    async def _choose(self, known: _Adaptive, number: int) -> None:
        """Choose rows for the next `number` tasks of a taskset, and record them."""
        selector = selector_of(known.taskset)
        arguments = DIFFICULTY | selector.kwargs
        chance = np.random.default_rng((selector.seed, known.end))
        difficulty = known.difficulty.learned([*known.seen], [fmean(rates) for rates in known.seen.values()])
        expected = difficulty.expected(chance if arguments["do_sample"] else None)
        rows = chosen(expected, number, arguments["target_reward"], arguments["tau"], chance)
        after = replace(known, difficulty=difficulty, seen={}, rows=[*known.rows], epochs=[*known.epochs])
        after.taken = known.taken.copy()
        for row in rows.tolist():
            after.rows.append(row)
            after.epochs.append(int(after.taken[row]))
            after.taken[row] += 1
        surplus = max(0, len(after.rows) - max(CHOICES_KEPT, number))
        after.first, after.rows, after.epochs = after.first + surplus, after.rows[surplus:], after.epochs[surplus:]
        await self._record(after)
        self._known[known.taskset.name] = after
        log.info(
            "rows_chosen",
            taskset=known.taskset.name,
            tasks=number,
            expected_pass_rate=round(float(expected[rows].mean()), 3),
            tried=len(known.seen),
        )

    async def _record(self, known: _Adaptive) -> None:
        record = RowsChosen(
            taskset=known.taskset.name,
            term=self._term,
            sequence=known.sequence,
            first=known.first,
            rows=np.asarray(known.rows, np.int32),
            epochs=np.asarray(known.epochs, np.int32),
            taken=known.taken.astype(np.int32),
            alphas=known.difficulty.alphas.astype(np.float32),
            betas=known.difficulty.betas.astype(np.float32),
            capability=known.difficulty.capability,
            weight=known.difficulty.rho,
        )
        try:
            known.revision = await self._bus.swap(choice_key(known.taskset.name), record, known.revision)
        except RevisionConflict as error:
            raise Superseded(f"another synchronizer has chosen rows of {known.taskset.name} since: {error}") from None


def pass_rate(group: GroupSampled, metric_key: str | None = None) -> float:
    """The mean, over the answers to a task, of the reward (or a score by name) of each one's last step, as a rate."""
    last = {experience.position: experience for experience in group.experiences}
    values = [each.reward if metric_key is None else each.metrics.get(metric_key, 0.0) for each in last.values()]
    return fmean(min(1.0, max(0.0, value)) for value in values)


def _note(known: _Adaptive, group: GroupSampled) -> None:
    if group.task.index < len(known.taskset):
        arguments = DIFFICULTY | selector_of(known.taskset).kwargs
        known.seen.setdefault(group.task.index, []).append(pass_rate(group, arguments["metric_key"]))


def _restored(fresh: _Adaptive, record: RowsChosen) -> _Adaptive:
    """What `record` says of the taskset of `fresh`."""
    size = len(fresh.taskset)
    if not size == len(record.taken) == len(record.alphas) == len(record.betas):
        raise TasksetError(
            fresh.taskset.name,
            f"it has {size} rows, and the run has chosen from {len(record.taken)}: give it the rows that the run began "
            "with, or begin another run",
        )
    difficulty = replace(
        fresh.difficulty,
        alphas=record.alphas.astype(np.float64),
        betas=record.betas.astype(np.float64),
        capability=record.capability,
        rho=record.weight,
    )
    return replace(
        fresh,
        difficulty=difficulty,
        taken=record.taken.astype(np.int64),
        sequence=record.sequence,
        first=record.first,
        rows=record.rows.tolist(),
        epochs=record.epochs.tolist(),
    )
