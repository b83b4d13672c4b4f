"""Tasks: one row of a taskset, with all that an explorer needs to answer it."""

from typing import Any, ClassVar

from pydantic import Field

from schemas.message import Message, Value
from schemas.weights import WeightVersion


class TaskIdentity(Value):
    """Which task: the `ordinal`-th release of the run (from 0), row `index` of `taskset` in `epoch`."""

    ordinal: int = Field(ge=0)
    batch: int = Field(ge=0)
    taskset: str
    epoch: int = Field(ge=0)
    index: int = Field(ge=0)

    @property
    def task_id(self) -> str:
        return f"{self.taskset}/{self.epoch}/{self.index}"


class TaskReleased(Message):
    """A task that may be started by an explorer whose weights satisfy `floor`.

    `term` is that of the synchronizer that released it; `retry` counts how often the same ordinal was put back after
    its message or its answer had been lost.
    """

    schema_name: ClassVar[str] = "task_released"

    run: str
    task: TaskIdentity
    repeat_times: int = Field(ge=1)
    workflow: str
    reward_fn: str | None = None
    row: dict[str, Any]
    format_args: dict[str, Any] = {}
    rollout_args: dict[str, Any] = {}
    workflow_args: dict[str, Any] = {}
    reward_fn_args: dict[str, Any] = {}
    floor: WeightVersion = WeightVersion()
    batch_tasks: int = Field(default=0, ge=0)
    released_at: float = 0.0
    term: int = Field(default=0, ge=0)
    retry: int = Field(default=0, ge=0)
