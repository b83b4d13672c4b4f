"""Which row comes when: a pure function from a task's ordinal to its taskset, epoch and row.

In an epoch each row of each taskset comes once, so that taskset, epoch and index name a task. Nothing is remembered between
calls: whoever takes over goes on at any ordinal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from services.rollout.config import DataSelectorConfig
from services.rollout.errors import TasksetError, UnknownName
from services.rollout.tasksets import Taskset

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Row `index` of `taskset`, in `epoch`."""

    taskset: Taskset
    epoch: int
    index: int


class Mixture:
    """Several tasksets as one endless sequence, mixed in proportion to their sizes."""

    def __init__(self, tasksets: Sequence[Taskset]) -> None:
        names = [taskset.name for taskset in tasksets]
        for name in names:
            if names.count(name) > 1:
                raise TasksetError(name, f"{names.count(name)} tasksets have this name: give each its own")
        if not tasksets:
            raise TasksetError("", "no taskset to take tasks from")
        self.tasksets = tuple(tasksets)
        self._which, self._nth = interleaved([len(taskset) for taskset in tasksets])
        for taskset in tasksets:
            order(len(taskset), 0, selector_of(taskset))

    def __len__(self) -> int:
        """Tasks of one epoch."""
        return len(self._which)

    def task_at(self, ordinal: int) -> Place:
        """Where the `ordinal`-th task of the run (from 0) is found."""
        epoch, place = divmod(ordinal, len(self))
        taskset = self.tasksets[int(self._which[place])]
        rows = order(len(taskset), epoch, selector_of(taskset))
        return Place(taskset, epoch, int(rows[self._nth[place]]))


def selector_of(taskset: Taskset) -> DataSelectorConfig:
    """The taskset's selector: `task_selector` is the older name of `data_selector`."""
    return taskset.config.task_selector or taskset.config.data_selector


def interleaved(sizes: Sequence[int]) -> tuple[Indices, Indices]:
    """One epoch over tasksets of these sizes, each spread evenly over it.

    Returns:
        For each of the `sum(sizes)` places, which taskset it is, and how many of that taskset came before.
    """
    which = np.concatenate([np.full(size, taskset, np.int64) for taskset, size in enumerate(sizes)])
    nth = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    due = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    by_time = np.argsort(due, kind="stable")
    return which[by_time], nth[by_time]


def order(size: int, epoch: int, selector: DataSelectorConfig) -> Indices:
    """The order in which the rows of a taskset come in `epoch`: a permutation of `0 .. size-1`.

    Raises:
        UnknownName: the selector is none of ORDERS.
    """
    return _order(size, epoch, selector.selector_type or "sequential", selector.seed)


def _sequential(size: int, epoch: int, seed: int) -> Indices:
    return np.arange(size, dtype=np.int64)


def _shuffled(size: int, epoch: int, seed: int) -> Indices:
    """A new shuffle each epoch, by the generator and seed of Trinity-RFT's `shuffle`."""
    return np.random.default_rng(seed + epoch).permutation(size)


def _random(size: int, epoch: int, seed: int) -> Indices:
    """As `shuffle`, from streams of its own. Drawing with replacement would give two tasks one name."""
    return np.random.default_rng((seed, epoch)).permutation(size)


ORDERS = {"sequential": _sequential, "shuffle": _shuffled, "random": _random}


@lru_cache(maxsize=64)
def _order(size: int, epoch: int, selector_type: str, seed: int) -> Indices:
    if selector_type not in ORDERS:
        raise UnknownName("selector_type", selector_type, ORDERS)
    rows = ORDERS[selector_type](size, epoch, seed)
    rows.setflags(write=False)
    return rows
