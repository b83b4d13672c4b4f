"""With credentials each role can do its part, and nothing else: every act of every role, tried on a real server."""

import asyncio
import dataclasses
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.credentials import Credentials, Keyring, find_credentials, new_credentials, read_credentials
from bus.denials import Denied
from bus.errors import BusRefused
from bus.jetstream import JetStreamBus, connect
from bus.permissions import Role, inbox_prefix
from bus.port import LeaseTerms
from bus.server import LocalServer
from bus.settings import KIB, BusSettings
from bus.subjects import Stream, bucket_name, bucket_names, stream_name, token
from schemas.codec import encode
from schemas.experiences import TaskAbandoned
from schemas.reports import EvaluationReported, MetricsReported, Quarantined
from schemas.weights import WeightsAnnounced, WeightVersion

RUN, OTHER = "project/name", "project/other"
SERVICES = ("explorer", "trainer", "evaluator", "synchronizer", "monitor", "launcher")
ROLES = [role for role in Role if role is not Role.ADMIN]
QUICK = BusSettings(request_timeout_s=5.0, connect_timeout_s=5.0, spill_bytes=64 * KIB, terms=LeaseTerms(lease_s=2.0))
IN_TIME_S = 2.0
"""A denial that is waited out as a timeout takes at least `request_timeout_s`."""

Speak = Callable[..., Awaitable[JetStreamBus]]
Act = Callable[[JetStreamBus, Any], Awaitable[Any]]


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    keyring = Keyring(tmp_path / "credentials")
    for run in (RUN, OTHER):
        keyring.ensure(run)
    return keyring


@pytest.fixture
async def guarded(tmp_path: Path, keyring: Keyring) -> AsyncIterator[LocalServer]:
    """A server of two runs, declared."""
    server = LocalServer(tmp_path / "store", accounts_path=keyring.write_accounts())
    await server.start()
    for run in (RUN, OTHER):
        admin = dataclasses.replace(QUICK, credentials=keyring.credentials(run, Role.ADMIN))
        bus = await connect(server.url, run, name="admin", settings=admin)
        await bus.declare()
        await bus.close()
    yield server
    await server.stop()


@pytest.fixture
async def speak(guarded: LocalServer, keyring: Keyring) -> AsyncIterator[Speak]:
    """Connects as a role; `about` is the run that is spoken of, where it is another than that of the credentials."""
    spoken: list[JetStreamBus] = []

    async def as_role(role: Role, run: str = RUN, about: str = "") -> JetStreamBus:
        settings = dataclasses.replace(QUICK, credentials=keyring.credentials(run, role))
        bus = await connect(guarded.url, about or run, name=str(role), settings=settings, observes=role is Role.READER)
        assert isinstance(bus, JetStreamBus)
        spoken.append(bus)
        return bus

    yield as_role
    for bus in spoken:
        await bus.close()


def weights(version: int = 1) -> WeightsAnnounced:
    return WeightsAnnounced(
        run=RUN,
        weights=WeightVersion(incarnation=1, version=version),
        uri="file:///w",
        files=(),
        dtype="bfloat16",
        step_ended_at=0.0,
        announced_at=0.0,
    )


def abandoned(said: Any) -> TaskAbandoned:
    return TaskAbandoned(
        run=RUN, task=said.task(1).task, repeat_times=2, explorer="e", attempts=4, error="none", abandoned_at=0.0
    )


def measured(service: str) -> MetricsReported:
    return MetricsReported(run=RUN, service=service, source="m", step=1, values={"a": 1.0})


def judged() -> EvaluationReported:
    return EvaluationReported(
        run=RUN, evaluator="e", weights=WeightVersion(version=1), taskset="t", tasks=1, metrics={"a": 1.0}
    )


def spoilt() -> Quarantined:
    return Quarantined(run=RUN, reason="spoilt", stream="metrics", subject="s", sequence=1, payload=b"?")


def said_by(make: Callable[[Any], Any]) -> Act:
    return lambda bus, said: bus.publish(make(said))


def written(key: str) -> Act:
    return lambda bus, said: bus.put(key, said.held())


def asked(request: str, payload: bytes = b"{}") -> Act:
    """A request to the JetStream API. An answer that the thing is not there is an answer."""
    return lambda bus, said: bus._connection.client.request(request, payload, timeout=QUICK.request_timeout_s)


async def read_all(bus: JetStreamBus, stream: Stream) -> None:
    async for _ in bus.read(stream, follow=False):
        pass
    async for _ in bus.outlines(stream):
        pass


async def taken(bus: JetStreamBus, said: Any) -> None:
    (delivery,) = await (await bus.queue()).pull(1, 5.0)
    await delivery.in_progress()
    await delivery.ack()


ACTS: dict[str, Act] = {
    "say task": said_by(lambda said: said.task(1)),
    "say group": said_by(lambda said: said.group(1)),
    "say large group": said_by(lambda said: said.group(2, "x" * 200 * KIB)),
    "say abandoned": said_by(abandoned),
    "say weights": said_by(lambda said: weights()),
    "say evaluation": said_by(lambda said: judged()),
    "say quarantined": said_by(lambda said: spoilt()),
    **{f"say metrics of {name}": said_by(lambda said, name=name: measured(name)) for name in SERVICES},
    **{f"write member.{name}": written(f"member.{name}.host.domain-1") for name in SERVICES},
    **{
        f"write {key}": written(key)
        for key in ("train", "incarnation", "release", "declared", "stored", "lease.synchronizer", "term.synchronizer")
    },
    **{f"write {key}": written(f"{key}.a.1") for key in ("taskset", "excused", "chosen", "served", "settled", "other")},
    **{f"read {each}": lambda bus, said, each=each: read_all(bus, each) for each in Stream if each is not Stream.TASKS},
    **{f"peek {each}": lambda bus, said, each=each: bus.last(each) for each in Stream if each is not Stream.BLOBS},
    **{f"state of {each}": lambda bus, said, each=each: bus.state(each) for each in Stream},
    "read keys": lambda bus, said: bus.entries("member."),
    "take task": taken,
    **{
        f"purge {each}": asked(f"$JS.API.STREAM.PURGE.{stream_name(RUN, each)}", b'{"filter":"none"}')
        for each in Stream
    },
    **{
        f"delete from {each}": asked(f"$JS.API.STREAM.MSG.DELETE.{stream_name(RUN, each)}", b'{"seq":1000000}')
        for each in Stream
    },
    **{f"drop {each}": asked(f"$JS.API.STREAM.DELETE.{stream_name(RUN, each)}x") for each in Stream},
    **{f"change {each}": asked(f"$JS.API.STREAM.UPDATE.{stream_name(RUN, each)}") for each in Stream},
    "purge keys": asked(f"$JS.API.STREAM.PURGE.KV_{bucket_name(RUN)}", b'{"filter":"none"}'),
    "drop keys": asked(f"$JS.API.STREAM.DELETE.KV_{bucket_name(RUN)}x"),
    "make stream": asked("$JS.API.STREAM.CREATE.mine", b'{"name":"mine","subjects":["mine"]}'),
    "list streams": asked("$JS.API.STREAM.NAMES"),
    "take task without credit": asked(f"$JS.API.CONSUMER.CREATE.{stream_name(RUN, Stream.TASKS)}"),
}

EVERYBODY = {"read keys", *(f"state of {each}" for each in Stream), "read blobs"}
TRACES = {"say quarantined"}
READING = {f"{act} {each}" for act in ("read", "peek") for each in Stream} - {"read tasks", "peek blobs"}

MAY: dict[Role, set[str]] = {
    Role.EXPLORER: EVERYBODY
    | TRACES
    | {"say group", "say large group", "say abandoned", "say metrics of explorer", "write member.explorer"}
    | {"write taskset", "write excused", "write served", "read weights", "peek weights", "take task"},
    Role.TRAINER: EVERYBODY
    | TRACES
    | {"say weights", "say metrics of trainer", "write member.trainer", "write train", "write incarnation"}
    | {"write release", "read experiences", "peek experiences", "read weights", "peek weights"}
    | {"peek quarantine", "purge experiences", "purge blobs"},
    Role.EVALUATOR: EVERYBODY
    | TRACES
    | {"say evaluation", "say metrics of evaluator", "write member.evaluator"}
    | {"read weights", "peek weights", "read metrics", "peek metrics"},
    Role.SYNCHRONIZER: EVERYBODY
    | TRACES
    | {"say task", "say group", "say large group", "say abandoned", "say metrics of synchronizer"}
    | {"write member.synchronizer", "write release", "write lease.synchronizer", "write term.synchronizer"}
    | {"write taskset", "write excused", "read weights", "peek weights", "read metrics", "peek metrics"}
    | {"write chosen", "peek tasks", "read experiences", "peek experiences"},
    Role.MONITOR: EVERYBODY
    | TRACES
    | {"write member.monitor", "write stored", "read metrics", "peek metrics", "read experiences", "peek experiences"},
    Role.OPERATOR: EVERYBODY
    | TRACES
    | READING
    | {"say task", "say group", "say large group", "say abandoned", "say evaluation"}
    | {f"say metrics of {name}" for name in SERVICES}
    | {"write member.launcher", "write declared", "write taskset", "write settled"}
    | {"purge quarantine", "purge blobs", "delete from quarantine"},
    Role.READER: EVERYBODY | READING,
}


async def _refusal(act: Act, bus: JetStreamBus, said: Any) -> str | None:
    """What is said to a role that may not, which must come at once; None where it may."""
    began = time.monotonic()
    try:
        await act(bus, said)
    except (BusRefused, Denied) as error:
        return str(error) if time.monotonic() - began < IN_TIME_S else f"late: {error}"
    return None


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_do_its_part_and_nothing_else(speak: Speak, said: Any, role: Role) -> None:
    synchronizer, trainer, explorer = [await speak(role) for role in (Role.SYNCHRONIZER, Role.TRAINER, Role.EXPLORER)]
    await synchronizer.publish(said.task(0))
    await trainer.publish(weights(0))
    await explorer.publish_all([said.group(0), said.group(9, "y" * 200 * KIB), measured("explorer"), spoilt()])
    bus = await speak(role)
    await bus.declare()
    refusals = {name: await _refusal(act, bus, said) for name, act in ACTS.items()}
    assert {name for name, words in refusals.items() if words is None} == MAY[role]
    for words in filter(None, refusals.values()):
        assert re.search(rf"the {role} of run {RUN} may not publish to \S+ \(.*\): start it .*bus\.credentials", words)
        assert not words.startswith("late")


async def test_an_explorer_answers_a_task_and_hands_one_back(speak: Speak, said: Any) -> None:
    synchronizer, explorer = await speak(Role.SYNCHRONIZER), await speak(Role.EXPLORER)
    await synchronizer.publish_all([said.task(0), said.task(1, taskset="another"), said.task(2, q="z" * 100 * KIB)])
    queue, answered = await explorer.queue(), 0
    while answered < 3:
        for delivery in await queue.pull(4, 5.0):
            if delivery.attempt == 1 and delivery.message.task.ordinal == 1:
                await delivery.nak()
                continue
            await explorer.publish(said.group(delivery.message.task.ordinal))
            await delivery.ack()
            answered += 1
    assert (await synchronizer.state(Stream.TASKS)).messages == 0
    assert (await synchronizer.state(Stream.BLOBS)).messages == 1  # of the large task: not an explorer's to free


async def test_a_trainer_frees_what_it_has_read_with_its_chunks(speak: Speak, said: Any) -> None:
    trainer, explorer = await speak(Role.TRAINER), await speak(Role.EXPLORER)
    await explorer.publish_all([said.group(0, "x" * 200 * KIB), said.group(1)])
    read = [each async for each in trainer.read(Stream.EXPERIENCES, follow=False)]
    assert sorted(each.message.task.ordinal for each in read) == [0, 1]
    await trainer.publish_next(weights(), after=0)
    await trainer.purge(Stream.EXPERIENCES, up_to=3)
    assert [(await trainer.state(each)).messages for each in (Stream.EXPERIENCES, Stream.BLOBS)] == [0, 0]


async def test_a_synchronizer_leads_and_its_successor_follows(speak: Speak) -> None:
    first, second = await speak(Role.SYNCHRONIZER), await speak(Role.SYNCHRONIZER)
    lease = await first.lease("synchronizer", "first", 5.0)
    following = asyncio.create_task(second.lease("synchronizer", "second", 5.0))
    await lease.release()
    assert (await asyncio.wait_for(following, 10.0)).term == lease.term + 1


async def test_an_operator_takes_a_message_out_of_the_quarantine(speak: Speak, said: Any) -> None:
    monitor, operator = await speak(Role.MONITOR), await speak(Role.OPERATOR)
    stored = await monitor.publish(spoilt().model_copy(update={"payload": b"!" * 200 * KIB}))
    assert (await operator.state(Stream.BLOBS)).messages == 1
    assert await operator.remove(Stream.QUARANTINE, stored.sequence) == 1
    assert (await operator.state(Stream.BLOBS)).messages == 0


async def test_garbage_is_quarantined_by_whoever_reads_it_and_left_by_a_reader(speak: Speak) -> None:
    operator, monitor, reader = [await speak(role) for role in (Role.OPERATOR, Role.MONITOR, Role.READER)]
    await operator._connection.jetstream.publish(f"trinity.{token(RUN)}.metrics.trainer.t", b"garbage")
    assert [each.message async for each in reader.read(Stream.METRICS, follow=False)] == [None]
    assert (await reader.state(Stream.QUARANTINE)).messages == 0
    assert [each.message async for each in monitor.read(Stream.METRICS, follow=False)] == [None]
    assert (await reader.state(Stream.QUARANTINE)).messages == 1


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_hears_what_is_not_for_it(speak: Speak, eventually: Any, role: Role) -> None:
    bus = await speak(role)
    root = f"trinity.{token(RUN)}.>"
    inboxes = [f"{inbox_prefix(other)}.>" for other in Role if other is not role]
    watched = {root} if role in (Role.OPERATOR, Role.READER) else set()
    refused = {">", "$JS.>", "$KV.>", "_INBOX.>", root, *inboxes} - watched
    with capture_logs() as logs:
        for subject in refused | watched:
            await bus._connection.client.subscribe(subject)
        await eventually(lambda: len(logs) >= len(refused))
        await bus._connection.client.flush()
    told = {
        subject for subject in refused for log in logs if f"may not subscribe to {subject.lower()} (" in log["reason"]
    }
    assert (told, len(logs)) == (refused, len(refused))


@pytest.mark.parametrize("role", [Role.ADMIN, *ROLES])
async def test_a_run_cannot_be_reached_with_the_credentials_of_another(speak: Speak, said: Any, role: Role) -> None:
    owner = await speak(Role.OPERATOR)
    await owner.publish_all([said.group(0), said.task(0)])
    stranger = await speak(role, OTHER, about=RUN)
    held = [await owner.state(each) for each in Stream]
    for stream in Stream:
        with pytest.raises(BusRefused):
            await asyncio.wait_for(stranger.state(stream), IN_TIME_S)
        with pytest.raises(BusRefused):
            await asyncio.wait_for(stranger.last(stream), IN_TIME_S)
    with pytest.raises(BusRefused):
        await asyncio.wait_for(stranger.get("release"), IN_TIME_S)
    with pytest.raises(BusRefused):
        await asyncio.wait_for(stranger.declare(), IN_TIME_S) if role is not Role.ADMIN else await stranger.get("x")
    assert [await owner.state(each) for each in Stream] == held


async def test_even_the_admin_of_a_run_neither_hears_another_nor_speaks_in_it(speak: Speak, said: Any) -> None:
    owner, stranger = await speak(Role.OPERATOR), await speak(Role.ADMIN, OTHER)
    client = stranger._connection.client
    heard = await client.subscribe(">")
    await client.publish(f"trinity.{token(RUN)}.weights", encode(weights()))
    await client.publish(
        f"$JS.API.DIRECT.GET.{stream_name(OTHER, Stream.BLOBS)}", b"{}", reply=f"$KV.{bucket_name(RUN)}.x"
    )
    await client.flush()
    await owner.publish(said.group(0))
    names = {info.config.name for info in await stranger._connection.jetstream.streams_info()}
    buckets = {f"KV_{bucket}" for bucket in bucket_names(OTHER)}
    assert names == {*(stream_name(OTHER, each) for each in Stream), *buckets}
    assert (await owner.state(Stream.WEIGHTS)).messages == 0
    assert await owner.get("x") is None
    own = {f"trinity.{token(RUN)}.weights", f"$KV.{bucket_name(RUN)}.x"}  # what it has said in its own account
    subjects = {(await heard.next_msg(1.0)).subject for _ in range(heard.pending_msgs)}
    assert {subject for subject in subjects if token(RUN) in subject} == own


async def test_trap_the_server_does_not_check_where_an_answer_is_sent(speak: Speak, said: Any) -> None:
    """docs/security.md says so. When this fails, the server has learnt to, and the page is to be mended."""
    explorer, trainer = await speak(Role.EXPLORER), await speak(Role.TRAINER)
    bucket = bucket_name(RUN, "member.explorer.x")
    key = f"$KV.{bucket}.member.explorer.x"
    await explorer._connection.jetstream.publish(key, encode(weights()))
    asked = f"$JS.API.DIRECT.GET.KV_{bucket}"
    request = json.dumps({"last_by_subj": key}).encode()
    await explorer._connection.client.publish(asked, request, reply=f"trinity.{token(RUN)}.weights")
    await eventually_stored(trainer)
    assert (await trainer.last(Stream.WEIGHTS)).message == weights()


async def eventually_stored(bus: JetStreamBus) -> None:
    async with asyncio.timeout(5.0):
        while (await bus.state(Stream.WEIGHTS)).messages == 0:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("url", ["{url}", "nats://user:password@{address}"])
async def test_who_has_no_credentials_is_not_let_in(guarded: LocalServer, url: str) -> None:
    address = url.format(url=guarded.url, address=guarded.url.removeprefix("nats://"))
    with pytest.raises(BusRefused, match=r"(?i)authorization violation.*bus\.credentials"):
        await connect(address, RUN, name="stranger", settings=QUICK)


async def test_unknown_credentials_are_refused(guarded: LocalServer) -> None:
    forged = dataclasses.replace(QUICK, credentials=new_credentials(RUN, Role.TRAINER))
    with pytest.raises(BusRefused, match="does not know these credentials"):
        await connect(guarded.url, RUN, name="forger", settings=forged)


async def test_who_cannot_hear_the_answers_to_its_requests_is_told_so(guarded: LocalServer, keyring: Keyring) -> None:
    """A message published so would be stored, and its publisher would try again and again."""
    own = keyring.credentials(RUN, Role.EXPLORER)
    mistaken = dataclasses.replace(QUICK, credentials=Credentials(RUN, Role.TRAINER, own.seed))
    bus = await connect(guarded.url, RUN, name="mistaken", settings=mistaken)
    for _ in range(2):
        with pytest.raises(BusRefused, match="may not hear the answers"):
            await asyncio.wait_for(bus.state(Stream.TASKS), IN_TIME_S)
    await bus.close()


async def test_a_run_that_nobody_has_declared_is_told_so(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "credentials")
    keyring.ensure(RUN)
    server = LocalServer(tmp_path / "store", accounts_path=keyring.write_accounts())
    await server.start()
    settings = dataclasses.replace(QUICK, credentials=keyring.credentials(RUN, Role.EXPLORER))
    bus = await connect(server.url, RUN, name="early", settings=settings)
    with pytest.raises(BusRefused, match="`trinity bus --auth --run project/name`"):
        await bus.declare()
    await bus.close()
    await server.stop()


def test_credentials_are_made_once_and_are_secret(keyring: Keyring) -> None:
    files = sorted(keyring.directory.rglob("*.nk"))
    assert len(files) == 2 * len(Role)
    before = [path.read_text() for path in files]
    assert len(set(before)) == len(files)
    keyring.ensure(RUN)
    keyring.write_accounts()
    assert [path.read_text() for path in files] == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*files, keyring.accounts_path)} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}
    excluded = read_credentials(keyring.of(RUN) / "explorer.nk")
    os.remove(keyring.of(RUN) / "explorer.nk")
    keyring.write_accounts()
    told = keyring.accounts_path.read_text()
    assert excluded.public_key not in told
    for path in files:
        found = read_credentials(path)
        assert found.public_key in told
        assert found.seed not in told
        assert found.seed not in repr(found)


def test_a_service_finds_the_credentials_of_its_role(keyring: Keyring) -> None:
    own = keyring.credentials(RUN, Role.TRAINER)
    for place in (keyring.directory, keyring.of(RUN), keyring.of(RUN) / "trainer.nk"):
        assert find_credentials(place, RUN, [Role.TRAINER]) == own
    assert find_credentials(keyring.directory, OTHER, [Role.TRAINER]).run == OTHER


def test_wrong_credentials_are_told_before_anybody_connects(keyring: Keyring, tmp_path: Path) -> None:
    with pytest.raises(BusRefused, match="are those of the explorer, and this is the trainer"):
        find_credentials(keyring.of(RUN) / "explorer.nk", RUN, [Role.TRAINER])
    with pytest.raises(BusRefused, match=f"are for run {OTHER}, not for {RUN}"):
        find_credentials(keyring.of(OTHER), RUN, [Role.TRAINER])
    with pytest.raises(BusRefused, match="cannot be read"):
        find_credentials(tmp_path / "nothing", RUN, [Role.TRAINER])
    os.remove(keyring.of(RUN) / "trainer.nk")
    with pytest.raises(BusRefused, match=r"no trainer\.nk for run project/name"):
        find_credentials(keyring.directory, RUN, [Role.TRAINER])
    path = keyring.of(RUN) / "monitor.nk"
    path.write_text(path.read_text()[:-3])
    with pytest.raises(BusRefused, match="is damaged"):
        find_credentials(keyring.directory, RUN, [Role.MONITOR])
    (tmp_path / "text").write_text("text")
    with pytest.raises(BusRefused, match="holds no credentials"):
        read_credentials(tmp_path / "text")


def test_credentials_that_others_may_read_are_warned_of(keyring: Keyring) -> None:
    path = keyring.of(RUN) / "trainer.nk"
    path.chmod(0o644)
    with capture_logs() as logs:
        read_credentials(path)
    assert f"chmod 600 {path}" in logs[0]["todo"]


async def test_a_store_is_not_served_where_its_streams_would_be_out_of_sight(
    guarded: LocalServer, keyring: Keyring, tmp_path: Path
) -> None:
    await guarded.stop()
    with pytest.raises(BusRefused, match="trinity bus --auth"):
        await LocalServer(guarded.store_dir).start()
    plain = LocalServer(tmp_path / "plain" / "store")
    await plain.start()
    bus = await connect(plain.url, RUN, name="m", settings=QUICK)
    await bus.declare()
    await bus.close()
    await plain.stop()
    with pytest.raises(BusRefused, match="leave out --auth"):
        await LocalServer(plain.store_dir, accounts_path=keyring.accounts_path).start()
