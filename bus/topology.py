"""The streams, consumers and store of a run, and the one place that declares them. Declaring twice changes nothing."""

import dataclasses
from collections.abc import Awaitable, Callable

import nats.js.errors
import structlog
from nats.js import api

from bus.connection import Connection
from bus.errors import BusRefused
from bus.permissions import Role
from bus.port import LeaseTerms
from bus.retrying import Patience
from bus.settings import BusSettings
from bus.subjects import FLEETING, Stream, bucket_name, bucket_names, stream_name, stream_subjects, token

log = structlog.get_logger()

MARKER_TTL_S = 5
"""How long a key that was deleted leaves a marker, by which those who watch the store see it go. One that expires
leaves none: the server ties such markers to roll-ups, by which whoever may write one key could empty the store."""

QUARANTINE_MEMORY_S = 30 * 24 * 3600.0
"""A message quarantined by every reader that meets it is kept once within this time."""

_NAME_IN_USE = 10058
_STORAGE_SHORT = 10047
_UNCHANGEABLE = 10052
_NOT_CLUSTERED, _NO_PEERS = 10074, 10005

_FLEETING_NAME = bucket_name("", FLEETING).removeprefix(bucket_name(""))

_NEW, _OLD = api.DiscardPolicy.NEW, api.DiscardPolicy.OLD


def stream_configs(run: str, settings: BusSettings) -> list[api.StreamConfig]:
    """Every stream of a run, whole: an update sends the full configuration."""
    return [
        _log(run, Stream.TASKS, settings, retention=api.RetentionPolicy.WORK_QUEUE),
        _log(run, Stream.EXPERIENCES, settings, max_bytes=settings.max_experience_bytes),
        _log(run, Stream.WEIGHTS, settings, discard=_OLD, max_msgs=settings.weights_kept),
        _log(run, Stream.METRICS, settings, discard=_OLD, max_bytes=settings.metrics_bytes),
        _log(run, Stream.QUARANTINE, settings, duplicate_window=QUARANTINE_MEMORY_S),
        _log(run, Stream.BLOBS, settings),
        _store(bucket_name(run), settings),
        members_store(run, settings),
    ]


def queue_consumer(run: str, taskset_subject: str, terms: LeaseTerms) -> api.ConsumerConfig:
    """The consumer that all explorers share for one taskset.

    One each, because the consumers of a work queue may not overlap. Delivery has no server-side limit: after it the
    task would stay in the stream, never delivered, so explorers count attempts themselves. What a stranger has put on a
    longer subject is served apart: a consumer of one name has one filter, and would leave its taskset for it.
    """
    taskset = taskset_subject.removeprefix(f"trinity.{token(run)}.tasks.")
    name = f"explorers-{token(taskset) if '.' in taskset else taskset}"
    return api.ConsumerConfig(
        name=name,
        durable_name=name,
        filter_subject=taskset_subject,
        deliver_policy=api.DeliverPolicy.ALL,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=terms.lease_s,
        max_deliver=-1,
        max_ack_pending=terms.max_in_hand,
        metadata={"trinity-run": token(run)},
    )


async def declare(connection: Connection, run: str, settings: BusSettings) -> None:
    """Make what is missing and bring the rest to its declared form; with credentials, see that the admin has done so.

    Raises:
        BusRefused: an existing stream cannot be changed so, the server has no room for it, or the admin is to make it.
    """
    credentials = settings.credentials
    if credentials is not None and credentials.role is not Role.ADMIN:
        await check(connection, run)
        return
    for config in stream_configs(run, settings):
        patience = Patience(connection, f"declare {config.name}")
        await patience.until_answered(_declaration(connection, config))


async def check(connection: Connection, run: str) -> None:
    """See that the streams of the run are there.

    Raises:
        BusRefused: one is missing.
    """
    for name in (*(stream_name(run, stream) for stream in Stream), *map("KV_{}".format, bucket_names(run))):
        await Patience(connection, f"look for {name}").until_answered(_presence(connection, run, name))


def _presence(connection: Connection, run: str, name: str) -> Callable[[], Awaitable[None]]:
    async def request() -> None:
        try:
            await connection.jetstream.stream_info(name)
        except nats.js.errors.NotFoundError as error:
            raise BusRefused(
                f"stream {name} does not exist, and only the admin of a bus with credentials makes streams: "
                f"`trinity bus --auth --run {run}` does at its start, or `trinity bus declare`"
            ) from error

    return request


def _declaration(connection: Connection, config: api.StreamConfig) -> Callable[[], Awaitable[None]]:
    async def request() -> None:
        js = connection.jetstream
        try:
            await js.add_stream(config)
        except nats.js.errors.BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise _refusal(config, error) from error
            await _update(connection, config)
        except nats.js.errors.APIError as error:
            raise _refusal(config, error) from error

    return request


async def _update(connection: Connection, config: api.StreamConfig) -> None:
    try:
        await connection.jetstream.update_stream(config)
    except nats.js.errors.APIError as error:
        if not (config.name or "").endswith(_FLEETING_NAME) or error.err_code != _UNCHANGEABLE:
            raise _refusal(config, error) from error
        await connection.jetstream.delete_stream(config.name or "")  # how it persists is fixed, what it holds is not
        await connection.jetstream.add_stream(config)
    log.info("stream_updated", stream=config.name)


def _refusal(config: api.StreamConfig, error: nats.js.errors.APIError) -> Exception:
    """What a refused declaration means; the error itself where it will pass."""
    if error.err_code in (_NOT_CLUSTERED, _NO_PEERS):
        return BusRefused(
            f"stream {config.name} cannot have {config.num_replicas} replicas here ({error.description}): "
            "set bus.replicas to 1, or bus.url to a cluster of as many nodes"
        )
    if error.code not in (400, 500):
        return error
    if error.err_code != _STORAGE_SHORT:
        return BusRefused(
            f"stream {config.name} is missing or has another form, and cannot be declared ({error.description}): "
            "give the run another name, or delete the stream"
        )
    return BusRefused(
        f"the server has no room for stream {config.name} of {config.max_bytes} bytes ({error.description}): "
        "lower bus.max_experience_bytes, or give the server more disk (max_file)"
    )


def _log(
    run: str,
    stream: Stream,
    settings: BusSettings,
    *,
    retention: api.RetentionPolicy = api.RetentionPolicy.LIMITS,
    discard: api.DiscardPolicy = _NEW,
    max_bytes: int = -1,
    max_msgs: int = -1,
    duplicate_window: float | None = None,
) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream_name(run, stream),
        subjects=stream_subjects(run, stream),
        retention=retention,
        storage=api.StorageType.FILE,
        discard=discard,
        max_bytes=max_bytes,
        max_msgs=max_msgs,
        max_age=0,
        num_replicas=settings.replicas,
        duplicate_window=settings.dedupe_window_s if duplicate_window is None else duplicate_window,
        allow_direct=True,
    )


def members_store(run: str, settings: BusSettings) -> api.StreamConfig:
    """The bucket of heartbeats. A single server need not flush each: what a power cut takes is said again."""
    config = _store(bucket_name(run, FLEETING), settings)
    return dataclasses.replace(config, persist_mode=None if settings.replicas > 1 else api.PersistMode.ASYNC)


def _store(bucket: str, settings: BusSettings) -> api.StreamConfig:
    """A key-value bucket, as the client's own key-value calls and the `nats` command know it."""
    return dataclasses.replace(
        api.StreamConfig(),
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.>"],
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        discard=_NEW,
        max_bytes=-1,
        max_msgs=-1,
        max_age=0,
        max_msgs_per_subject=1,
        num_replicas=settings.replicas,
        duplicate_window=120,
        allow_direct=True,
        allow_rollup_hdrs=False,
        allow_msg_ttl=True,
        deny_delete=True,
        deny_purge=True,
    )
