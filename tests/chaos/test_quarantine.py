"""What could not be used can be listed, looked into, put back and dropped, and the account of the run stays whole."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from bus.jetstream import connect
from bus.port import Bus
from bus.server import LocalServer
from bus.settings import BusSettings
from bus.subjects import Stream, stream_subjects
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.account.quarantine import CannotRetry, Retrying, entries, refused_answers
from services.trainer.checks import Limits

POISON = """
from pathlib import Path

from services.rollout.rewards import register_reward


@register_reward("poisonous")
def poisonous(answer):
    if answer.truth == "6" and Path({marker!r}).exists():
        raise ValueError("this row is poison")
    return {{"accuracy": float(answer.response.strip() == answer.truth)}}
"""

Cli = Callable[..., Any]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The exit status and the output of a real command on the run's configuration."""

    async def call(*command: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", *command, "--config", str(tmp_path / "run.yaml")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert b"Traceback" not in errors, errors.decode()
        return process.returncode or 0, output.decode()

    return call


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _listed(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def _group(run: str, ordinal: int, version: int = 0, text: str = "") -> GroupSampled:
    experience = Experience(
        position=0,
        tokens=[1, 2, 3, 4],
        prompt_length=2,
        action_mask=[1, 1],
        logprobs=[-0.5, -0.25],
        token_versions=[version, version],
        reward=1.0,
        response_text=text,
    )
    task = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
    return GroupSampled(run=run, task=task, repeat_times=1, explorer="stranger", experiences=(experience,))


@pytest.mark.chaos
async def test_a_poison_task_is_quarantined_and_answered_once_it_is_mended_and_retried(
    start, config, cli, server, tmp_path: Path
) -> None:
    marker = tmp_path / "poison"
    marker.touch()
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "poison.py").write_text(POISON.format(marker=str(marker)), encoding="utf-8")
    config |= {"plugin_dirs": [str(plugins)]}
    config["bus"]["url"] = server.url
    config["buffer"]["total_steps"] = 20
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.2  # time to mend it
    config["trainer"]["trainer_config"] = {"seconds_per_step": 2.0}
    config["buffer"]["explorer_input"]["taskset"]["default_reward_fn_type"] = "poisonous"
    config["explorer"]["max_retry_times"] = 0
    config["synchronizer"]["max_deliver"] = 2
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.quarantined == 1)
        marker.unlink()
        status, output = await cli("quarantine", "list", "--json")
        (found,) = _listed(output)
        assert (status, found["stream"], found["publisher"], found["attempts"]) == (0, "tasks", "sums", 2)
        assert (found["quarantined_by"], found["schema"]) == ("explorer", "task_released 1")
        assert "this row is poison" in found["reason"]
        status, output = await cli("quarantine", "show", str(found["number"]))
        assert "answer: 6" in output
        status, output = await cli("quarantine", "retry", str(found["number"]))
        assert (status, output) == (0, f"{found['number']}: task 3 released anew (retry 1)\n1 retried, 0 left\n")
        assert (await bus.state(Stream.QUARANTINE)).messages == 0
        assert await run.ends() == 0
    status, output = await cli("audit", "--json")
    account = json.loads(output)
    assert status == 0, output
    assert account["tasks"]["abandoned"] == 0
    assert account["experiences"]["filtered"] == {}
    assert (account["experiences"]["lost"], account["experiences"]["twice"]) == (0, 0)
    assert account["tasks"]["answered"] == account["tasks"]["released"]
    assert account["tasks"]["released"] in (79, 80)  # the answer that came after all may stand for another's


@pytest.mark.chaos
async def test_garbage_and_an_answer_from_the_future_are_shown_refused_and_dropped(
    start, config, cli, server, tmp_path: Path
) -> None:
    config["bus"]["url"] = server.url
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 1)
        client = await nats.connect(server.url)
        for stream in (Stream.TASKS, Stream.EXPERIENCES, Stream.METRICS, Stream.QUARANTINE):
            for subject in stream_subjects(bus.run, stream):
                garbage = b"\x1b[31m\xff garbage" if stream is not Stream.QUARANTINE else b"\x81\xa6schema\xa1x"
                await client.jetstream().publish(subject.replace(">", "stranger"), garbage)
        await client.close()
        await bus.publish(_group(bus.run, 20, version=99), message_id="a stranger's")
        assert await run.ends() == 0
    status, output = await cli("quarantine", "list", "--json")
    found = {item["stream"]: item for item in _listed(output)}
    assert set(found) == {"tasks", "experiences", "metrics", "quarantine"}
    assert {item["publisher"] for item in found.values()} == {"stranger"}
    status, output = await cli("quarantine", "list", "--stream", "experiences", "--reason", "none above")
    assert "weight version 99, where none above" in output
    assert "group_sampled 1" in output
    status, output = await cli("quarantine", "list")
    assert "\x1b" not in output
    status, output = await cli("quarantine", "show", str(found["tasks"]["number"]), "--raw", str(tmp_path / "raw"))
    assert "00000000  1b 5b 33 31 6d ff" in output
    assert (tmp_path / "raw").read_bytes() == b"\x1b[31m\xff garbage"
    status, before = await cli("audit", "--json")
    assert status == 0, before
    status, output = await cli("quarantine", "retry", "--all")
    assert status == 1
    assert "stays: not msgpack" in output
    assert "task 20 has been answered since" in output
    status, output = await cli("quarantine", "drop", "--all")
    assert (status, "0 left" in output) == (0, True)
    status, output = await cli("quarantine", "list")
    assert output == "the quarantine holds nothing of that kind\n"
    status, after = await cli("audit", "--json")
    assert status == 0, after
    account = json.loads(after)
    assert account["experiences"] == json.loads(before)["experiences"]
    assert account["experiences"]["quarantined"] == 2
    assert account["experiences"]["withheld"] == 1


@pytest.fixture
async def bus(server: LocalServer) -> AsyncIterator[Bus]:
    joined = await connect(server.url, "p/n", name="test", settings=BusSettings(spill_bytes=1024))
    await joined.declare()
    yield joined
    await joined.close()


def _retrying(bus: Bus) -> Retrying:
    return Retrying(bus, Limits(), None, None, {}, frozenset({"trainer"}))


async def test_an_answer_whose_blob_is_back_returns_to_its_stream_once(bus) -> None:
    group = _group(bus.run, 0, text="x" * 4096)
    await bus.publish(group)
    (stored,) = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    (claim,) = [outline.headers["trinity-claim"] async for outline in bus.outlines(Stream.EXPERIENCES)]
    await bus.drop_blob(claim)
    assert [delivery.message async for delivery in bus.read(Stream.EXPERIENCES, follow=False)] == [None]
    (entry,) = [entry async for entry in entries(bus)]
    with pytest.raises(CannotRetry, match="chunks are there"):
        await _retrying(bus).retry(entry)
    assert (await bus.state(Stream.QUARANTINE)).messages == 1
    await bus.publish(group, message_id="the blob again")
    await bus.remove(Stream.EXPERIENCES, 2)
    assert await _retrying(bus).retry(entry) == "back on the stream of experiences, at sequence 3"
    found = {delivery.sequence: delivery.message async for delivery in bus.read(Stream.EXPERIENCES, follow=False)}
    assert found == {stored.sequence: group, 3: group}
    assert (await bus.state(Stream.QUARANTINE)).messages == 0
    assert await refused_answers(bus) == {1}  # so that an account knows which of the two was trained on


async def test_an_answer_that_the_trainer_would_refuse_again_stays(bus) -> None:
    await bus.publish(_group(bus.run, 0, version=7))
    (delivery,) = [delivery async for delivery in bus.read(Stream.EXPERIENCES, follow=False)]
    await bus.quarantine(delivery, Stream.EXPERIENCES, "weight version 7")
    (entry,) = [entry async for entry in entries(bus)]
    with pytest.raises(CannotRetry, match="where none above 0 can exist yet"):
        await _retrying(bus).retry(entry)
    assert (await bus.state(Stream.QUARANTINE)).messages == 1
