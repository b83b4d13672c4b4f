"""Every type of message is stored on the stream of its type and read back as it was."""

import pytest

from bus.errors import BusRefused
from bus.subjects import SUBJECTS, Stream
from schemas.experiences import TaskAbandoned
from schemas.reports import EvaluationReported, Quarantined
from schemas.state import MemberSeen
from schemas.weights import FileDigest, WeightsAnnounced, WeightVersion

RUN = "project/name"


def one_of_each(said):
    identity = said.task(7).task
    return [
        (Stream.TASKS, said.task(3, nested={"a": [1, 2.5, None, "ü"]})),
        (Stream.EXPERIENCES, said.group(4, "an answer")),
        (
            Stream.EXPERIENCES,
            TaskAbandoned(run=RUN, task=identity, repeat_times=2, explorer="e", attempts=5, error="it failed"),
        ),
        (
            Stream.WEIGHTS,
            WeightsAnnounced(
                run=RUN,
                weights=WeightVersion(incarnation=2, version=9),
                uri="file:///weights/9",
                files=(FileDigest(name="model.safetensors", size_bytes=3, sha256="00"),),
                dtype="bfloat16",
                step_ended_at=1.0,
                announced_at=2.0,
            ),
        ),
        (Stream.METRICS, said.metrics(5)),
        (
            Stream.METRICS,
            EvaluationReported(
                run=RUN,
                evaluator="evaluator-0",
                weights=WeightVersion(),
                taskset="eval",
                tasks=3,
                metrics={"mean@1": 0.5},
            ),
        ),
        (
            Stream.QUARANTINE,
            Quarantined(run=RUN, reason="bad", stream="tasks", subject="s", sequence=4, payload=b"\x00\xff"),
        ),
    ]


async def test_every_type_of_message_comes_back_as_it_was_said(bus, said, first):
    spoken = one_of_each(said)
    assert {type(message) for _, message in spoken} == set(SUBJECTS)
    for _, message in spoken:
        await bus.publish(message)
    for stream in (Stream.EXPERIENCES, Stream.WEIGHTS, Stream.METRICS, Stream.QUARANTINE):
        heard = [delivery.message async for delivery in bus.read(stream, follow=False)]
        assert heard == [message for place, message in spoken if place is stream]
    (delivery,) = await (await bus.queue()).pull(5, 5.0)
    assert delivery.message == spoken[0][1]


async def test_a_delivery_says_where_it_stood(bus, said):
    stored = await bus.publish(said.group(4, explorer="explorer 1"))
    (delivery,) = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    assert delivery.sequence == stored.sequence == 1
    assert delivery.subject.startswith("trinity.project_name-")
    assert delivery.subject.split(".")[2] == "experiences"
    assert delivery.attempt == 1
    assert delivery.stored_at > 1.6e9


async def test_the_last_message_is_the_newest(bus, said):
    assert await bus.last(Stream.EXPERIENCES) is None
    for ordinal in range(3):
        await bus.publish(said.group(ordinal))
    newest = await bus.last(Stream.EXPERIENCES)
    assert newest is not None
    assert newest.message == said.group(2)


async def test_headers_are_readable_with_the_plain_command(bus, raw, said):
    await bus.publish(said.task(3))
    stored = await raw.jetstream().get_msg("trinity_project_name-" + bus_token(), seq=1)
    assert stored.headers["trinity-schema"] == "task_released"
    assert stored.headers["trinity-run"] == RUN
    assert stored.headers["trinity-task"] == "train/0/3"
    assert stored.headers["trinity-version"] == "0.0"
    assert stored.headers["Nats-Msg-Id"] == "project/name:task:3:0"


def bus_token() -> str:
    import hashlib

    return hashlib.sha256(RUN.encode()).hexdigest()[:8] + "_tasks"


async def test_a_message_without_a_stream_is_refused(bus):
    member = MemberSeen(service="explorer", member="e", host="h", pid=1, started_at=0.0, seen_at=0.0, state="sampling")
    with pytest.raises(BusRefused, match="key-value store"):
        await bus.publish(member)


async def test_a_message_of_another_run_is_refused(bus, said):
    with pytest.raises(BusRefused, match="'other'"):
        await bus.publish(said.group(run="other"))
