"""The run's state in the key-value store: its declaration, its members, its leader and its progress."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from schemas.arrays import Float32Array, Int32Array
from schemas.message import Message, Value
from schemas.reports import ServiceName
from schemas.weights import WeightVersion

Phase = Literal["releasing", "draining", "finished"]


class RunDeclared(Message):
    """Who the run is: written once, read by whoever joins."""

    schema_name: ClassVar[str] = "run_declared"

    run: str
    run_dir: str
    config: dict[str, Any]
    declared_at: float


class MemberSeen(Message):
    """A heartbeat. It vanishes by its time to live when the member does not renew it."""

    schema_name: ClassVar[str] = "member_seen"

    service: ServiceName
    member: str
    host: str
    pid: int
    started_at: float
    seen_at: float
    state: str
    weights: WeightVersion = WeightVersion()
    tasks_in_hand: int = 0
    versions_needed: tuple[int, ...] = ()
    detail: dict[str, float] = {}


class LeaseHeld(Message):
    """A lease with its fencing term: a holder of a lower term has been superseded."""

    schema_name: ClassVar[str] = "lease_held"

    holder: str
    term: int = Field(ge=1)
    renewed_at: float


class TasksetShare(Value):
    """A taskset of a segment, of which `consumed` tasks were released before the segment began.

    `due` of its tasks are in the first round of the segment, as many as it has rows in each later one; None: in all.
    """

    name: str
    consumed: int = Field(default=0, ge=0)
    due: int | None = Field(default=None, ge=0)


class Segment(Value):
    """From the task `first_ordinal` on, tasks are a mixture of these tasksets."""

    first_ordinal: int = Field(ge=0)
    tasksets: tuple[TasksetShare, ...]


class RowsChosen(Message):
    """Which rows of an adaptive taskset its tasks take, and what that was decided by; written before they are released.

    Of the taskset's tasks in the order of their release, those from `first` on take `rows`, each for the time that
    `epochs` counts from 0. Of each row of the taskset, `taken` counts how often it was taken, and `alphas` and `betas`
    are the posterior of its pass rate, in which the experience stream up to `sequence` is counted. `capability` and
    `weight` are those of the estimate of rows that were not tried lately.
    """

    schema_name: ClassVar[str] = "rows_chosen"

    taskset: str
    term: int = Field(ge=1)
    sequence: int = Field(ge=0)
    first: int = Field(ge=0)
    rows: Int32Array
    epochs: Int32Array
    taken: Int32Array
    alphas: Float32Array
    betas: Float32Array
    capability: float | None = None
    weight: float = 0.0


class Reissued(Value):
    """A task that was released anew because its message or its answer had been lost."""

    ordinal: int = Field(ge=0)
    times: int = Field(ge=1)


class Refill(Value):
    """From the task `first_ordinal` on, `tasks` of those before only make up for experiences that were filtered: a
    task's place, by which batches are counted, is its ordinal less `tasks`."""

    first_ordinal: int = Field(ge=0)
    tasks: int


class ReleaseProgress(Message):
    """How far the synchronizer has released: tasks `0 .. released-1`, in batches `0 .. batches-1`.

    `segments` say from which ordinal on which tasksets are mixed; `reissued` names tasks that were released again.
    `refills` tell the places of all tasks that are not answered yet, and of the newest batch.
    """

    schema_name: ClassVar[str] = "release_progress"

    term: int = Field(ge=1)
    phase: Phase
    released: int = Field(ge=0)
    batches: int = Field(ge=0)
    total_tasks: int | None = None
    total_batches: int | None = None
    waiting_for: str = ""
    updated_at: float = 0.0
    segments: tuple[Segment, ...] = ()
    reissued: tuple[Reissued, ...] = ()
    refills: tuple[Refill, ...] = ()


class Counts(Value):
    """What became of the messages of the experience stream that the trainer has read. `trained` and `tokens_trained`
    count each experience once, `reused` and `tokens_reused` its further uses."""

    trained: int = 0
    filtered: dict[str, int] = {}
    quarantined: int = 0
    duplicates: int = 0
    tokens_trained: int = 0
    reused: int = 0
    tokens_reused: int = 0


class TrainProgress(Message):
    """How far the trainer is: `answered_floor` is the lowest task ordinal that it has not yet seen answered,
    `answered_above` those beyond it that it has; `sequence_floor` is the lowest sequence of the experience stream that
    is not in the weights, `read_sequence` the last one that was read. `waiting_for` says in words what holds it up.
    `loss` is the policy loss of the last step.

    The tasks that are answered make `batches_closed` batches, trained on or not, and the next one holds `gathered`
    experiences so far.
    """

    schema_name: ClassVar[str] = "train_progress"

    weights: WeightVersion
    step: int = Field(ge=0)
    total_steps: int | None = None
    answered_floor: int = Field(default=0, ge=0)
    answered: int = Field(default=0, ge=0)
    checkpoint_step: int = 0
    counts: Counts = Counts()
    reward: float | None = None
    staleness: float | None = None
    sequence_floor: int = Field(default=1, ge=1)
    is_finished: bool = False
    updated_at: float = 0.0
    answered_above: tuple[int, ...] = ()
    read_sequence: int = Field(default=0, ge=0)
    waiting_for: str = ""
    loss: float | None = None
    batches_closed: int | None = Field(default=None, ge=0)
    gathered: int = Field(default=0, ge=0)


class Resumed(Value):
    """An incarnation of the trainer, and the step from which it went on."""

    incarnation: int = Field(ge=1)
    step: int = Field(ge=0)


class IncarnationTaken(Message):
    """The number of times a trainer has begun this run, taken by compare-and-set.

    `lineage` says from which step each incarnation went on: what an earlier one made after that step is not part of
    the run.
    """

    schema_name: ClassVar[str] = "incarnation_taken"

    incarnation: int = Field(ge=1)
    trainer: str
    taken_at: float
    lineage: tuple[Resumed, ...] = ()


class TasksetOffered(Message):
    """A taskset that an explorer has brought: the synchronizer adds it to the mixture. `config` is its section."""

    schema_name: ClassVar[str] = "taskset_offered"

    run: str
    name: str
    config: dict[str, Any]
    offered_by: str
    offered_at: float


class StoreProgress(Message):
    """How far the monitor has written the experience stream to the stores that the configuration names: every message
    up to `sequence` is in all of them. `waiting_for` says in words which of them cannot be written for now."""

    schema_name: ClassVar[str] = "store_progress"

    sequence: int = Field(ge=0)
    waiting_for: str = ""
    updated_at: float = 0.0


class TaskExcused(Message):
    """How deliveries of a task have ended: `times` by a hand-back, which is no failure and does not count as an
    attempt, `failures` by an error that was told. What is neither ended with its explorer."""

    schema_name: ClassVar[str] = "task_excused"

    ordinal: int = Field(ge=0)
    times: int = Field(ge=0)
    failures: int = Field(default=0, ge=0)
