"""What a run will release: every batch of tasks, as a function of its number alone, and the pace of releasing them."""

import math
import time
from dataclasses import dataclass

from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.tree import RunConfig
from services.rollout.mixture import Mixture
from services.rollout.tasks import released
from services.rollout.tasksets import open_taskset
from services.synchronizer.pace import STYLES, Pace, staleness_bound


@dataclass(frozen=True)
class Plan:
    """All tasks of a run, from ordinal 0 to `tasks - 1`, in batches of `batch_size`."""

    config: RunConfig
    mixture: Mixture
    pace: Pace
    batch_size: int
    tasks: int

    @property
    def batches(self) -> int:
        return math.ceil(self.tasks / self.batch_size)

    @property
    def staleness_bound(self) -> int | None:
        return staleness_bound(self.pace)

    def batch(self, number: int, floor: WeightVersion) -> list[TaskReleased]:
        """The tasks of one batch. The last may be smaller."""
        first = number * self.batch_size
        ordinals = range(first, min(first + self.batch_size, self.tasks))
        return [self._task(ordinal, number, len(ordinals), floor) for ordinal in ordinals]

    def _task(self, ordinal: int, batch: int, batch_tasks: int, floor: WeightVersion) -> TaskReleased:
        place = self.mixture.task_at(ordinal)
        taskset = place.taskset
        return released(
            taskset.config,
            taskset.row(place.index),
            TaskIdentity(ordinal=ordinal, batch=batch, taskset=taskset.name, epoch=place.epoch, index=place.index),
            run=self.config.run_name,
            repeat_times=self.config.repeat_times,
            rollout_args=self.config.rollout_args(taskset.config),
            floor=floor,
            batch_tasks=batch_tasks,
            released_at=time.time(),
        )


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run. With `total_steps` it has the tasks that those steps need, whatever the epochs."""
    mixture = Mixture([open_taskset(settings) for settings in config.tasksets])
    steps = config.total_steps
    tasks = config.buffer.total_epochs * len(mixture)
    if steps is not None:
        tasks = math.ceil(steps * config.train_batch_size / config.repeat_times)
    return Plan(config, mixture, pace_of(config), config.batch_size, tasks)


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
