"""Who may do what: the subjects that each role of a run may publish and hear. What no row grants is refused.

Asking the server is publishing too: to read a stream is to publish requests to its part of the JetStream API, and to
hear the answers in an inbox that belongs to the role.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from bus.subjects import Stream, bucket_name, bucket_names, stream_name, token


class Role(StrEnum):
    """Who connects. The services by their names, people as `operator` and `reader`, and `admin`, who declares."""

    EXPLORER = "explorer"
    TRAINER = "trainer"
    EVALUATOR = "evaluator"
    SYNCHRONIZER = "synchronizer"
    MONITOR = "monitor"
    OPERATOR = "operator"
    READER = "reader"
    ADMIN = "admin"


@dataclass(frozen=True)
class Rights:
    """What one role may do in its run, besides what all may.

    `says` are subjects below `trinity.R`, `writes` keys of the store, both with wildcards; of the streams it `peeks`
    at it may fetch single messages; `purges` are streams of which it may free any part, `deletes` those of which it
    may take out single messages; `watches` is hearing the run's subjects as they are published.
    """

    says: tuple[str, ...] = ()
    reads: tuple[Stream, ...] = ()
    peeks: tuple[Stream, ...] = ()
    writes: tuple[str, ...] = ()
    pulls_tasks: bool = False
    purges: tuple[Stream, ...] = ()
    deletes: tuple[Stream, ...] = ()
    watches: bool = False


@dataclass(frozen=True)
class Permissions:
    """Subjects, with wildcards, as a NATS server takes them."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


ALL_SAY = ("quarantine.*", "blobs.*.*")
"""Every role but the reader: whoever reads quarantines what it cannot use, and a message of any kind may be too large
and travel in chunks."""

RIGHTS: dict[Role, Rights] = {
    Role.EXPLORER: Rights(
        says=("experiences.*", "metrics.explorer.*"),
        reads=(Stream.WEIGHTS,),
        writes=("member.explorer.>", "taskset.>", "excused.>", "served.>"),
        pulls_tasks=True,
    ),
    Role.TRAINER: Rights(
        says=("weights", "metrics.trainer.*"),
        reads=(Stream.EXPERIENCES, Stream.WEIGHTS),
        peeks=(Stream.QUARANTINE,),  # what it frees leaves the blobs that the quarantine still holds
        writes=("member.trainer.>", "train", "incarnation", "release"),  # a replay has no synchronizer to end it
        purges=(Stream.EXPERIENCES, Stream.BLOBS),
    ),
    Role.EVALUATOR: Rights(
        says=("reports.evaluator.*", "metrics.evaluator.*"),
        reads=(Stream.WEIGHTS, Stream.METRICS),
        writes=("member.evaluator.>",),
    ),
    Role.SYNCHRONIZER: Rights(
        says=("tasks.*", "experiences.*", "metrics.synchronizer.*"),  # in `experiences`, that a task is given up
        reads=(Stream.WEIGHTS, Stream.METRICS, Stream.EXPERIENCES),
        peeks=(Stream.TASKS,),
        writes=(
            "member.synchronizer.>",
            "release",
            "lease.synchronizer",
            "term.synchronizer",
            "taskset.>",
            "chosen.>",
            "excused.>",
        ),
    ),
    Role.MONITOR: Rights(reads=(Stream.METRICS, Stream.EXPERIENCES), writes=("member.monitor.>", "stored")),
    Role.OPERATOR: Rights(
        says=("tasks.*", "experiences.*", "metrics.*.*", "reports.*.*"),
        reads=tuple(Stream),
        writes=("member.launcher.>", "declared", "taskset.>", "settled.>"),
        purges=(Stream.QUARANTINE, Stream.BLOBS),
        deletes=(Stream.QUARANTINE,),
        watches=True,
    ),
    Role.READER: Rights(reads=tuple(Stream), watches=True),
}


def inbox_prefix(role: Role) -> str:
    """Where answers to this role go. Another role that could listen there would read them."""
    return f"_INBOX_{role}"


def permissions(run: str, role: Role) -> Permissions:
    """What the server is told of `role` in `run`. The admin may do everything in the run's account."""
    if role is Role.ADMIN:
        return Permissions(publish=(">",), subscribe=(">",))
    rights = RIGHTS[role]
    root = f"trinity.{token(run)}"
    publish = [f"{root}.{said}" for said in (*rights.says, *(ALL_SAY if rights.writes else ()))]
    publish += [f"$KV.{bucket_name(run, key)}.{key}" for key in rights.writes]
    publish += [request for right in (_looking, _asking) for request in right(run, rights)]
    watched = (f"{root}.>", *(f"$KV.{bucket}.>" for bucket in bucket_names(run))) if rights.watches else ()
    return Permissions(publish=tuple(publish), subscribe=(f"{inbox_prefix(role)}.>", *watched))


def _looking(run: str, rights: Rights) -> Iterator[str]:
    """Requests that change nothing: how full streams are, the keys, and the streams that the role reads."""
    stores = [f"KV_{bucket}" for bucket in bucket_names(run)]
    for name in (*(stream_name(run, stream) for stream in Stream), *stores):
        yield f"$JS.API.STREAM.INFO.{name}"
    yield f"$JS.API.CONSUMER.LIST.{stream_name(run, Stream.TASKS)}"
    for store in stores:
        yield from (f"$JS.API.STREAM.MSG.GET.{store}", f"$JS.API.DIRECT.GET.{store}")
    for stream in dict.fromkeys((*rights.reads, *rights.peeks, Stream.BLOBS)):
        name = stream_name(run, stream)
        yield from (f"$JS.API.STREAM.MSG.GET.{name}", f"$JS.API.DIRECT.GET.{name}", f"$JS.API.DIRECT.GET.{name}.>")
        if stream is Stream.TASKS or stream in rights.peeks:
            continue  # a consumer of a work queue takes from it
        yield from (f"$JS.API.CONSUMER.CREATE.{name}.*", f"$JS.API.CONSUMER.CREATE.{name}.*.>")
        yield from (f"$JS.API.CONSUMER.{act}.{name}.*" for act in ("INFO", "MSG.NEXT", "DELETE"))


def _asking(run: str, rights: Rights) -> Iterator[str]:
    """Requests that change something."""
    tasks = stream_name(run, Stream.TASKS)
    if rights.pulls_tasks:
        yield f"$JS.API.CONSUMER.CREATE.{tasks}.*.trinity.{token(run)}.tasks.*"
        yield from (f"$JS.API.CONSUMER.INFO.{tasks}.*", f"$JS.API.CONSUMER.MSG.NEXT.{tasks}.*")
        yield from (f"$JS.API.DIRECT.GET.{tasks}", f"$JS.ACK.{tasks}.>")
    for stream in rights.purges:
        yield f"$JS.API.STREAM.PURGE.{stream_name(run, stream)}"
    for stream in rights.deletes:
        yield f"$JS.API.STREAM.MSG.DELETE.{stream_name(run, stream)}"
