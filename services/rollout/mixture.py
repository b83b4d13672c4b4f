"""Several tasksets as one sequence of tasks: whoever takes over goes on at any ordinal."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.config import DataSelectorConfig
from services.rollout.errors import TasksetError
from services.rollout.ordering import interleaved, order
from services.rollout.tasksets import Taskset


@dataclass(frozen=True)
class Place:
    """Row `index` of `taskset`, in `epoch`."""

    taskset: Taskset
    epoch: int
    index: int


class Mixture:
    """Several tasksets as one endless sequence, mixed in proportion to their sizes, with access at any ordinal."""

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
            order(len(taskset), 0, _selector(taskset))  # an unknown selector is refused here

    def __len__(self) -> int:
        """Tasks of one epoch."""
        return len(self._which)

    def task_at(self, ordinal: int) -> Place:
        """Where the `ordinal`-th task of the run (from 0) is found."""
        epoch, place = divmod(ordinal, len(self))
        taskset = self.tasksets[int(self._which[place])]
        rows = order(len(taskset), epoch, _selector(taskset))
        return Place(taskset, epoch, int(rows[self._nth[place]]))


def _selector(taskset: Taskset) -> DataSelectorConfig:
    """The taskset's selector: `task_selector` is the older name of `data_selector`."""
    return taskset.config.task_selector or taskset.config.data_selector
