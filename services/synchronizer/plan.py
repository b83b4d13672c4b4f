"""What a run will release: every task as a function of its ordinal and of the segments, and the pace of releasing."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.state import Refill, Segment, TrainProgress
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.tree import RunConfig
from services.rollout.mixture import Choices, Mixture
from services.rollout.served import served_taskset
from services.rollout.tasks import released
from services.rollout.tasksets import Taskset, open_taskset
from services.synchronizer.pace import STYLES, Pace, floor_version, staleness_bound
from services.synchronizer.refill import tasks_before
from services.synchronizer.serving import ENDLESS, assert_served_alone


@dataclass(frozen=True)
class Plan:
    """All tasks of a run, in batches of `batch_size` places (`services/synchronizer/refill.py`).

    Where nothing is filtered, places are ordinals, from 0 to `tasks - 1`.
    """

    config: RunConfig
    mixture: Mixture
    pace: Pace
    batch_size: int

    def __post_init__(self) -> None:
        if self.is_served:
            assert_served_alone(self.mixture)

    @property
    def is_served(self) -> bool:
        """Whether tasks are released as conversations are finished."""
        return self.config.mode == "serve"

    @property
    def tasks(self) -> int:
        """With `total_steps`, the tasks that those steps need where none is made up for, whatever the epochs."""
        steps = self.config.total_steps
        if steps is None:
            return ENDLESS if self.is_served else self.config.buffer.total_epochs * len(self.mixture)
        return math.ceil(steps * self.config.fresh_batch_size / self.config.repeat_times)

    @property
    def batches(self) -> int | None:
        """None where the run has no end."""
        return None if self.tasks == ENDLESS else self.batches_of(self.tasks)

    @property
    def staleness_bound(self) -> int | None:
        return staleness_bound(self.pace)

    def batches_of(self, tasks: int) -> int:
        """The batches that the first `tasks` tasks of the run make."""
        return math.ceil(tasks / self.batch_size)

    def end(self, made_up: int = 0) -> int:
        """The ordinal after the last task, where `made_up` tasks so far count for nothing: steps need others in their
        place, epochs have only so many."""
        return self.tasks if self.config.total_steps is None else self.tasks + made_up

    def told_end(self, made_up: int = 0) -> int | None:
        """`end`; None where the run has none."""
        return None if self.tasks == ENDLESS else self.end(made_up)

    def next_batch(self, first: int, made_up: int = 0) -> range:
        """The ordinals from `first` to the end of its batch, or of the run; none where steps need no more tasks unless
        some are filtered."""
        left = self.batch_size - (first - made_up) % self.batch_size
        return range(first, max(first, min(first + left, self.end(made_up))))

    def batch_of(self, ordinal: int, refills: Sequence[Refill] = ()) -> int:
        """The batch that a task was released for."""
        return (ordinal - tasks_before(ordinal, refills)) // self.batch_size

    def newest_batch(self, released: int, refills: Sequence[Refill] = ()) -> range:
        """The ordinals that were released last."""
        made_up = tasks_before(released - 1, refills)
        first = (released - 1 - made_up) // self.batch_size * self.batch_size + made_up
        return range(max([first, *(refill.first_ordinal for refill in refills[-1:])]), released)

    def is_through(self, released: int, train: TrainProgress | None) -> bool:
        """Whether no task will be needed any more. Steps need none when the answers make all of them."""
        steps = self.config.total_steps
        if steps is None or (train is not None and train.batches_closed is None):
            return released >= self.tasks
        return train is not None and (train.batches_closed or 0) >= steps

    def is_trained(self, released: int, train: TrainProgress | None) -> bool:
        """Whether a run that has been finished needs nothing more to be what this plan asks for."""
        steps = self.config.total_steps
        return released >= self.tasks if steps is None else train is not None and train.step >= steps

    def released_tasks(
        self, ordinals: Sequence[int], incarnation: int, term: int, retry: int = 0, refills: Sequence[Refill] = ()
    ) -> list[TaskReleased]:
        """The messages that release these tasks under weights of `incarnation`, by the leader of `term`."""
        tasks = []
        for ordinal in ordinals:
            version = floor_version(self.batch_of(ordinal, refills), self.pace)
            tasks.append(self._task(ordinal, WeightVersion(incarnation=incarnation, version=version), term, retry))
        return tasks

    def with_choices(self, choices: Choices) -> "Plan":
        """The same plan, in which adaptive tasksets take the rows of `choices`."""
        return replace(self, mixture=self.mixture.with_choices(choices))

    def with_taskset(self, taskset: Taskset, ordinal: int) -> "Plan":
        """The same plan below `ordinal`, and `taskset` in the mixture from there on."""
        epochs = self.config.buffer.total_epochs if self.config.total_steps is None else None
        return replace(self, mixture=self.mixture.joined(taskset, ordinal, epochs))

    def _task(self, ordinal: int, floor: WeightVersion, term: int, retry: int) -> TaskReleased:
        """`batch` and `batch_tasks` count ordinals, made up or not: metrics of sampling are gathered by them."""
        place = self.mixture.task_at(ordinal)
        taskset, batch = place.taskset, ordinal // self.batch_size
        size = min(self.batch_size, self.tasks - batch * self.batch_size)
        message = released(
            taskset.config,
            taskset.row(place.index),
            TaskIdentity(ordinal=ordinal, batch=batch, taskset=taskset.name, epoch=place.epoch, index=place.index),
            run=self.config.run_name,
            repeat_times=self.config.repeat_times,
            rollout_args=self.config.rollout_args(taskset.config),
            floor=floor,
            batch_tasks=size if size > 0 else self.batch_size,
            released_at=time.time(),
        )
        return message.model_copy(update={"term": term, "retry": retry})


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run that has only the tasksets of `config`.

    Raises:
        RolloutError: a taskset cannot be read, or its selector is not known.
    """
    if config.mode == "serve":
        return planned(config, [served_taskset()])
    return planned(config, [open_taskset(settings) for settings in config.tasksets])


def planned(config: RunConfig, tasksets: Sequence[Taskset], segments: Sequence[Segment] = ()) -> Plan:
    """The plan of a run over opened tasksets, mixed as `segments` say."""
    return Plan(config, Mixture(tasksets, segments), pace_of(config), config.batch_size)


def pace_of(config: RunConfig) -> Pace:
    """The pace that the configuration asks for."""
    synchronizer = config.synchronizer
    style = STYLES[synchronizer.sync_style]
    interval = synchronizer.trainer_sync_interval or synchronizer.sync_interval
    slow = math.floor(config.explorer.over_rollout.ratio * config.batch_size + 1e-9) / config.batch_size
    return Pace(
        style=style,
        interval=interval,
        offset=synchronizer.sync_offset,
        max_staleness=synchronizer.max_staleness,
        max_outstanding=max(config.explorer.max_inflight_batches, synchronizer.sync_offset + interval + 1) + slow,
        steps_per_batch=config.batch_size * config.repeat_times / config.fresh_batch_size,
    )
