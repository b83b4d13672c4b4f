"""Several tasksets as one sequence of tasks: a function of the segments and the ordinal, so that whoever takes over
goes on at any place. Each row of each taskset comes once in each of its epochs, whichever tasksets join and when; but
the rows of an adaptive taskset are those that were chosen for its tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from schemas.state import Segment, TasksetShare
from services.rollout.config import DataSelectorConfig
from services.rollout.errors import TasksetError
from services.rollout.ordering import Indices, apportioned, assert_known, interleaved, order
from services.rollout.selectors import ADAPTIVE, EASY_FIRST
from services.rollout.tasksets import Taskset


@dataclass(frozen=True)
class Place:
    """Row `index` of `taskset`, in `epoch`. Of an adaptive taskset, `epoch` counts how often the row came before."""

    taskset: Taskset
    epoch: int
    index: int


class Choices(Protocol):
    """The rows that were chosen for the tasks of adaptive tasksets."""

    def chosen(self, taskset: str, nth: int) -> tuple[int, int]:
        """Epoch and row of the `nth` task (from 0) of a taskset.

        Raises:
            TasksetError: none was chosen.
        """


class NothingChosen:
    """No row has been chosen."""

    def chosen(self, taskset: str, nth: int) -> tuple[int, int]:
        raise TasksetError(taskset, f"no row has been chosen for its task {nth}: rows are chosen as they are released")


class Mixture:
    """Several tasksets as one endless sequence, mixed in proportion to their sizes or weights, with access at any
    ordinal.

    Raises:
        TasksetError: two tasksets have one name, or a segment names one that is not given.
        UnknownName: a selector is not known.
    """

    def __init__(
        self, tasksets: Sequence[Taskset], segments: Sequence[Segment] = (), choices: Choices | None = None
    ) -> None:
        names = [taskset.name for taskset in tasksets]
        for name in names:
            if names.count(name) > 1:
                raise TasksetError(name, f"{names.count(name)} tasksets have this name: give each its own")
        if not tasksets:
            raise TasksetError("", "no taskset to take tasks from")
        self.tasksets = tuple(tasksets)
        self.choices = choices or NothingChosen()
        whole = Segment(first_ordinal=0, tasksets=tuple(TasksetShare(name=name) for name in names))
        self.segments = tuple(segments) or (whole,)
        self._parts = [_Part(segment, {taskset.name: taskset for taskset in tasksets}) for segment in self.segments]
        for taskset in tasksets:
            assert_known(selector_of(taskset).selector_type)
            if not is_adaptive(taskset):
                order_in(taskset, 0)  # what it cannot be ordered by is refused here

    def __len__(self) -> int:
        """Tasks of one epoch of all tasksets."""
        return sum(len(taskset) for taskset in self.tasksets)

    def task_at(self, ordinal: int) -> Place:
        """Where the `ordinal`-th task of the run (from 0) is found.

        Raises:
            TasksetError: it is a task of an adaptive taskset, and no row has been chosen for it.
        """
        taskset, count = self.turn(ordinal)
        if is_adaptive(taskset):
            return Place(taskset, *self.choices.chosen(taskset.name, count))
        epoch, place = divmod(count, len(taskset))
        return Place(taskset, epoch, int(order_in(taskset, epoch)[place]))

    def turn(self, ordinal: int) -> tuple[Taskset, int]:
        """Whose turn it is at an ordinal, and how many tasks of that taskset came before."""
        return self._part(ordinal).nth(ordinal)

    def consumed(self, ordinal: int) -> dict[str, int]:
        """How many tasks of each taskset come before `ordinal`, by name."""
        return self._part(ordinal).consumed_before(ordinal)

    def joined(self, taskset: Taskset, ordinal: int, epochs: int | None) -> "Mixture":
        """The same sequence below `ordinal`; from there on `taskset` is in it too.

        With `epochs`, all that is left of the `epochs` of every taskset comes in the first round from there on, so
        that all have come to their end together; without, they are mixed by their sizes for ever. With weights, that
        round has as many tasks, shared by weight.
        """
        before = self.consumed(ordinal)
        tasksets = (*self.tasksets, taskset)
        due = None if epochs is None else [max(0, epochs * len(each) - before.get(each.name, 0)) for each in tasksets]
        if due is not None and (weights := weights_of(tasksets)) is not None:
            due = apportioned(sum(due), weights)
        shares = [
            TasksetShare(name=each.name, consumed=before.get(each.name, 0), due=None if due is None else due[place])
            for place, each in enumerate(tasksets)
        ]
        kept = [segment for segment in self.segments if segment.first_ordinal < ordinal]
        return Mixture(tasksets, [*kept, Segment(first_ordinal=ordinal, tasksets=tuple(shares))], self.choices)

    def with_choices(self, choices: Choices) -> "Mixture":
        """The same sequence, in which adaptive tasksets take the rows of `choices`."""
        return Mixture(self.tasksets, self.segments, choices)

    def _part(self, ordinal: int) -> "_Part":
        return next(part for part in reversed(self._parts) if part.first <= ordinal)


class _Part:
    """One segment: a first round, then equal rounds for ever, of one epoch each where no taskset has a weight."""

    def __init__(self, segment: Segment, tasksets: dict[str, Taskset]) -> None:
        for share in segment.tasksets:
            if share.name not in tasksets:
                raise TasksetError(share.name, f"it is in the run from task {segment.first_ordinal} on, but not given")
        self.first = segment.first_ordinal
        self._names = [share.name for share in segment.tasksets]
        self._tasksets = [tasksets[name] for name in self._names]
        self._sizes = np.asarray(round_of(self._tasksets))
        self._consumed = np.asarray([share.consumed for share in segment.tasksets])
        due = [share.due for share in segment.tasksets]
        self._due = np.asarray([size if due is None else due for size, due in zip(self._sizes, due, strict=True)])
        self._opening = interleaved([int(number) for number in self._due])
        self._round = interleaved([int(size) for size in self._sizes])

    def nth(self, ordinal: int) -> tuple[Taskset, int]:
        """The taskset of a task, and how many of that taskset came before it."""
        which, nth, place, before = self._found(ordinal)
        number = int(which[place])
        return self._tasksets[number], int(before[number] + nth[place])

    def consumed_before(self, ordinal: int) -> dict[str, int]:
        which, _, place, before = self._found(ordinal)
        counts = before + np.bincount(which[:place], minlength=len(self._names))
        return {name: int(count) for name, count in zip(self._names, counts, strict=True)}

    def _found(self, ordinal: int) -> "tuple[_Indices, _Indices, int, _Indices]":
        """The round of an ordinal, its place there, and what of each taskset came before that round."""
        position = ordinal - self.first
        if position < len(self._opening[0]):
            return *self._opening, position, self._consumed
        rounds, place = divmod(position - len(self._opening[0]), len(self._round[0]))
        return *self._round, place, self._consumed + self._due + rounds * self._sizes


_Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


def round_of(tasksets: Sequence[Taskset]) -> list[int]:
    """Tasks of each taskset in a round of as many as they have rows together."""
    sizes = [len(taskset) for taskset in tasksets]
    weights = weights_of(tasksets)
    return sizes if weights is None else apportioned(sum(sizes), weights)


def weights_of(tasksets: Sequence[Taskset]) -> list[float] | None:
    """The weight of each taskset: where one has none, the mean of the others'. None where nobody has one."""
    given = [taskset.config.weight for taskset in tasksets if taskset.config.weight is not None]
    if not given:
        return None
    mean = sum(given) / len(given)
    return [mean if taskset.config.weight is None else taskset.config.weight for taskset in tasksets]


def selector_of(taskset: Taskset) -> DataSelectorConfig:
    """The taskset's selector: `task_selector` is the older name of `data_selector`."""
    return taskset.config.task_selector or taskset.config.data_selector


def is_adaptive(taskset: Taskset) -> bool:
    """Whether its rows are chosen by how hard they are now."""
    return selector_of(taskset).selector_type in ADAPTIVE


def order_in(taskset: Taskset, epoch: int) -> Indices:
    """The order of the taskset's rows in `epoch`.

    Raises:
        TasksetError: a row lacks a number that it is to be ordered by.
    """
    selector = selector_of(taskset)
    if selector.selector_type in EASY_FIRST:
        return taskset.easy_first(tuple(selector.feature_keys))
    return order(len(taskset), epoch, selector)
