"""What a run will release: every task as a function of its ordinal and of the segments, and the pace of releasing."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.state import Segment
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.tree import RunConfig
from services.rollout.mixture import Mixture
from services.rollout.tasks import released
from services.rollout.tasksets import Taskset, open_taskset
from services.synchronizer.pace import STYLES, Pace, floor_version, staleness_bound


@dataclass(frozen=True)
class Plan:
    """All tasks of a run, from ordinal 0 to `tasks - 1`, in batches of `batch_size`."""

    config: RunConfig
    mixture: Mixture
    pace: Pace
    batch_size: int

    @property
    def tasks(self) -> int:
        """With `total_steps`, the tasks that those steps need, whatever the epochs."""
        steps = self.config.total_steps
        if steps is None:
            return self.config.buffer.total_epochs * len(self.mixture)
        return math.ceil(steps * self.config.train_batch_size / self.config.repeat_times)

    @property
    def batches(self) -> int:
        return self.batches_of(self.tasks)

    @property
    def staleness_bound(self) -> int | None:
        return staleness_bound(self.pace)

    def batches_of(self, tasks: int) -> int:
        """The batches that the first `tasks` tasks of the run make."""
        return math.ceil(tasks / self.batch_size)

    def next_batch(self, first: int) -> range:
        """The ordinals from `first` to the end of its batch, or of the run."""
        return range(first, min((first // self.batch_size + 1) * self.batch_size, self.tasks))

    def released_tasks(
        self, ordinals: Sequence[int], incarnation: int, term: int, retry: int = 0
    ) -> list[TaskReleased]:
        """The messages that release these tasks under weights of `incarnation`, by the leader of `term`."""
        return [self._task(ordinal, incarnation, term, retry) for ordinal in ordinals]

    def with_taskset(self, taskset: Taskset, ordinal: int) -> "Plan":
        """The same plan below `ordinal`, and `taskset` in the mixture from there on."""
        epochs = self.config.buffer.total_epochs if self.config.total_steps is None else None
        return replace(self, mixture=self.mixture.joined(taskset, ordinal, epochs))

    def _task(self, ordinal: int, incarnation: int, term: int, retry: int) -> TaskReleased:
        place = self.mixture.task_at(ordinal)
        taskset, batch = place.taskset, ordinal // self.batch_size
        message = released(
            taskset.config,
            taskset.row(place.index),
            TaskIdentity(ordinal=ordinal, batch=batch, taskset=taskset.name, epoch=place.epoch, index=place.index),
            run=self.config.run_name,
            repeat_times=self.config.repeat_times,
            rollout_args=self.config.rollout_args(taskset.config),
            floor=WeightVersion(incarnation=incarnation, version=floor_version(batch, self.pace)),
            batch_tasks=min((batch + 1) * self.batch_size, self.tasks) - batch * self.batch_size,
            released_at=time.time(),
        )
        return message.model_copy(update={"term": term, "retry": retry})


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run that has only the tasksets of `config`.

    Raises:
        RolloutError: a taskset cannot be read, or its selector is not known.
    """
    return planned(config, [open_taskset(settings) for settings in config.tasksets])


def planned(config: RunConfig, tasksets: Sequence[Taskset], segments: Sequence[Segment] = ()) -> Plan:
    """The plan of a run over opened tasksets, mixed as `segments` say."""
    return Plan(config, Mixture(tasksets, segments), pace_of(config), config.batch_size)


def pace_of(config: RunConfig) -> Pace:
    """The pace that the configuration asks for."""
    synchronizer = config.synchronizer
    style = STYLES[synchronizer.sync_style]
    interval = synchronizer.trainer_sync_interval or synchronizer.sync_interval
    return Pace(
        style=style,
        interval=interval,
        offset=synchronizer.sync_offset,
        max_staleness=synchronizer.max_staleness,
        max_outstanding=max(config.explorer.max_inflight_batches, synchronizer.sync_offset + interval + 1),
        steps_per_batch=config.batch_size * config.repeat_times / config.train_batch_size,
    )
