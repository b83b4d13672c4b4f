"""Names on the bus: which stream and subject a message of each type travels on.

A run's token is its name made safe for subjects: letters, digits, `-` and `_`, with a short digest of the whole name
where anything had to be replaced or cut, or where the name itself ends like such a digest, so that two runs never
share a subject.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from enum import StrEnum

from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.message import Message
from schemas.reports import EvaluationReported, MetricsReported, Quarantined
from schemas.tasks import TaskReleased
from schemas.weights import WeightsAnnounced


class Stream(StrEnum):
    """The streams of a run."""

    TASKS = "tasks"
    EXPERIENCES = "experiences"
    WEIGHTS = "weights"
    METRICS = "metrics"
    QUARANTINE = "quarantine"
    BLOBS = "blobs"


FLEETING = "member."
"""Keys below it are set again every few seconds by all members, and have a bucket of their own, of which the server
need not flush every change to the disk."""


@functools.lru_cache(maxsize=1024)
def token(name: str) -> str:
    """`name` as one token of a subject."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if name and safe == name and len(name) <= 80 and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    return f"{safe[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def stream_name(run: str, stream: Stream) -> str:
    return f"trinity_{token(run)}_{stream}"


def bucket_name(run: str, key: str = "") -> str:
    """The key-value bucket in which `key` stands."""
    return f"trinity_{token(run)}_members" if key.startswith(FLEETING) else f"trinity_{token(run)}"


def bucket_names(run: str) -> tuple[str, str]:
    """Both buckets of a run."""
    return bucket_name(run), bucket_name(run, FLEETING)


def stream_subjects(run: str, stream: Stream) -> list[str]:
    """What a stream of the run listens to."""
    root = f"trinity.{token(run)}"
    if stream is Stream.METRICS:
        return [f"{root}.metrics.>", f"{root}.reports.>"]
    if stream is Stream.WEIGHTS:
        return [f"{root}.weights"]
    return [f"{root}.{stream}.>"]


def task_subject(run: str, taskset: str) -> str:
    return f"trinity.{token(run)}.tasks.{token(taskset)}"


def chunk_subject(run: str, digest: str, number: int | str) -> str:
    return f"trinity.{token(run)}.blobs.{digest}.{number}"


def _root(message: Message) -> str:
    return f"trinity.{token(str(getattr(message, 'run')))}"  # noqa: B009


SUBJECTS: dict[type[Message], tuple[Stream, Callable[..., str]]] = {
    TaskReleased: (Stream.TASKS, lambda m: task_subject(m.run, m.task.taskset)),
    GroupSampled: (Stream.EXPERIENCES, lambda m: f"{_root(m)}.experiences.{token(m.explorer)}"),
    TaskAbandoned: (Stream.EXPERIENCES, lambda m: f"{_root(m)}.experiences.{token(m.explorer)}"),
    WeightsAnnounced: (Stream.WEIGHTS, lambda m: f"{_root(m)}.weights"),
    MetricsReported: (Stream.METRICS, lambda m: f"{_root(m)}.metrics.{m.service}.{token(m.source)}"),
    EvaluationReported: (Stream.METRICS, lambda m: f"{_root(m)}.reports.evaluator.{token(m.evaluator)}"),
    Quarantined: (Stream.QUARANTINE, lambda m: f"{_root(m)}.quarantine.{token(m.stream)}"),
}

MESSAGE_IDS: dict[type[Message], Callable[..., str]] = {
    TaskReleased: lambda m: f"{m.run}:task:{m.task.ordinal}:{m.retry}",
    GroupSampled: lambda m: f"{m.run}:answer:{m.task.ordinal}:{m.retry}",
    TaskAbandoned: lambda m: f"{m.run}:answer:{m.task.ordinal}:{m.retry}",
    WeightsAnnounced: lambda m: f"{m.run}:weights:{m.weights.incarnation}:{m.weights.version}:{m.is_final}",
    EvaluationReported: lambda m: f"{m.run}:evaluation:{m.weights.incarnation}:{m.weights.version}:{m.taskset}",
    Quarantined: lambda m: f"{m.run}:quarantined:{m.stream}:{m.sequence}",
}
