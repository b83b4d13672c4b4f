"""Metrics and evaluation results, for the monitor, `trinity status` and the summary."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.message import Message, Value
from schemas.weights import WeightVersion

ServiceName = Literal["explorer", "trainer", "evaluator", "synchronizer", "monitor", "launcher"]
Activity = Literal["sampling", "training", "syncing", "starting"]


class Span(Value):
    """What a service did from `start_s` to `end_s` (seconds since the epoch). What no span covers was idle."""

    activity: Activity
    start_s: float
    end_s: float


class MetricsReported(Message):
    """Metrics of one service for one step: `values` as they are, `samples` to be summed up as mean, max and min.

    Reports of one step are gathered until `parts` of them have come (0: each stands alone).
    """

    schema_name: ClassVar[str] = "metrics_reported"

    run: str
    service: ServiceName
    source: str
    step: int = Field(ge=0)
    values: dict[str, float] = {}
    samples: dict[str, tuple[float, ...]] = {}
    spans: tuple[Span, ...] = ()
    parts: int = Field(default=0, ge=0)
    at: float = 0.0


class EvaluationReported(Message):
    """The result of one eval taskset under exactly one weight version."""

    schema_name: ClassVar[str] = "evaluation_reported"

    run: str
    evaluator: str
    weights: WeightVersion
    taskset: str
    tasks: int = Field(ge=0)
    metrics: dict[str, float]
    duration_s: float = 0.0
    at: float = 0.0


class Quarantined(Message):
    """A message or task that could not be used, kept whole with its reason and origin.

    `message_id` is the id under which it was published, `origin` the service that put it here.
    """

    schema_name: ClassVar[str] = "quarantined"

    run: str
    reason: str
    stream: str
    subject: str
    sequence: int = Field(ge=0)
    payload: bytes
    origin: str = ""
    attempts: int = 0
    at: float = 0.0
    message_id: str = ""
