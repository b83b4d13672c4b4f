"""Real conversations, judged by their users, become steps of a trainer: each once, whoever dies meanwhile."""

import asyncio
import copy
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bus.server import LocalServer
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from services.account.audit import audit
from services.explorer.serving.client import TrinityClient
from services.explorer.serving.history import History

PATIENCE_S = 90.0
LONG = 200
"""Tokens of a response that takes longer than the first steps."""


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _side(config: dict[str, Any], url: str, mode: str, **explorer: Any) -> dict[str, Any]:
    side = copy.deepcopy(config) | {"mode": mode}
    side["bus"] = {**config["bus"], "url": url}
    side["buffer"] = {"batch_size": 2, "total_steps": 3}
    side["algorithm"]["repeat_times"] = 2
    side["model"] |= {"max_prompt_tokens": 100, "max_response_tokens": LONG}
    side["explorer"] |= {"proxy_port": 0, "listen_address": "127.0.0.1", **explorer}
    side["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.02
    side["trainer"]["save_interval"] = 1
    return side


async def _client(serving: Any, name: str = "explorer") -> TrinityClient:
    """A client of the serving explorer, once it answers."""
    path = serving.config.run_dir / f"{name}_server_url.txt"
    deadline = time.monotonic() + PATIENCE_S
    while not path.is_file() or not await asyncio.to_thread(TrinityClient.of_file(path).is_alive):
        assert serving.process.poll() is None, serving.output[-3000:]
        assert time.monotonic() < deadline, serving.output[-3000:]
        await asyncio.sleep(0.1)
    return TrinityClient.of_file(path)


async def _said(client: TrinityClient, text: str, **options: Any) -> Any:
    async with client.openai_async() as asking:
        return await asking.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **options)


async def _judged(client: TrinityClient, task: str, runs: int = 2, **options: Any) -> None:
    """One whole task, whose runs are worth 0, 1, and so on."""
    for run in range(runs):
        answer = await _said(client, f"{task}, once more", **options)
        said = {"reward": float(run), "msg_ids": [answer.id], "task_id": task, "run_id": run}
        await asyncio.to_thread(client._asked, "POST", "/feedback", said)


async def _groups(bus: Any) -> list[GroupSampled]:
    return [each.message async for each in bus.read(Stream.EXPERIENCES, follow=False)]


@pytest.mark.chaos
async def test_a_trainer_learns_from_conversations_while_others_go_on_over_its_new_weights(
    start, config, server
) -> None:
    trainer = start(_side(config, server.url, "train"), file="trainer.yaml")
    serving = start(_side(config, server.url, "serve"), file="serving.yaml")
    client = await _client(serving)
    refused = (await asyncio.to_thread(client.metrics))["refused"]
    for number in range(6):
        await _judged(client, f"task {number}", max_tokens=4)
    half = await _said(client, "half a task", max_tokens=4)
    judged = {"reward": 1.0, "msg_ids": [half.id], "task_id": "half"}
    waiting = await asyncio.to_thread(client._asked, "POST", "/feedback", judged)
    stories = await _stories(client, 8)
    told = await asyncio.to_thread(client._asked, "POST", "/commit")
    assert waiting["updated"] == [half.id]
    assert told == {"status": "success", "groups": 6, "messages": 12, "waiting": {"half": "1 of 2 runs"}}
    async with trainer.bus() as bus:
        assert await trainer.ends() == 0, trainer.output[-3000:]
        groups = await _groups(bus)
        found = await audit(bus, trainer.config)
    assert [(group.task.ordinal, [each.reward for each in group.experiences]) for group in groups] == [
        (ordinal, [0.0, 1.0]) for ordinal in range(6)
    ]
    assert found.account.is_sound, found.account
    assert (found.account.tasks.released, found.account.tasks.answered) == (6, 6)
    assert found.account.experiences()["trained"] == 12
    versions = await asyncio.gather(*stories)
    assert all({0, 1} <= set(each) for each in versions), [set(each) for each in versions]
    assert all(len(each) == LONG and each == sorted(each) for each in versions)
    assert (await _said(client, "and now?", max_tokens=1)).system_fingerprint == "1.3"
    assert (await asyncio.to_thread(client.metrics))["refused"] == refused


async def _stories(client: TrinityClient, number: int) -> list[asyncio.Task[list[int]]]:
    """Long answers, every other one in a stream, all of which have been begun: which weights sampled each token."""

    async def told(place: int) -> list[int]:
        story: list[Any] = [{"role": "user", "content": f"a long story, number {place}"}]
        async with client.openai_async().with_options(max_retries=0) as asking:
            answer: Any = await asking.chat.completions.create(
                model="m", messages=story, stream=place % 2 == 1, extra_body={"return_token_ids": True}
            )
            if place % 2 == 1:
                answer = [chunk async for chunk in answer][-1]
        return list(answer.choices[0].token_versions)

    asked = [asyncio.create_task(told(place)) for place in range(number)]
    while (await asyncio.to_thread(client.metrics))["in_flight"] < number:
        await asyncio.sleep(0.02)
    return asked


@pytest.mark.chaos
async def test_feedback_survives_a_kill_and_is_published_once(start, config, server) -> None:
    trainer = start(_side(config, server.url, "train"), file="trainer.yaml")
    serving = start(_side(config, server.url, "serve"), file="serving.yaml")
    client = await _client(serving)
    for number in range(5):
        await _judged(client, f"task {number}", max_tokens=4)
    last = await _said(client, "the sixth", max_tokens=4)
    async with trainer.bus() as bus:
        os.kill(await serving.pid_of(bus, "explorer"), signal.SIGKILL)
        client = await _client(serving)
        for run, answer in enumerate((last, await _said(client, "the sixth", max_tokens=4))):
            said = {"reward": float(run), "msg_ids": [answer.id], "task_id": "sixth", "run_id": run}
            await asyncio.to_thread(client._asked, "POST", "/feedback", said)
        await asyncio.to_thread(client._asked, "POST", "/commit")
        os.kill(await serving.pid_of(bus, "explorer"), signal.SIGKILL)
        assert await trainer.ends() == 0, trainer.output[-3000:]
        groups = await _groups(bus)
        found = await audit(bus, trainer.config)
    answers = [group.task.ordinal for group in groups]
    assert sorted(set(answers)) == list(range(6))
    assert found.account.is_sound, found.account
    assert found.account.experiences()["trained"] == 12
    assert "service_restarting" in serving.output
    history = History(f"sqlite:///{serving.config.run_dir / 'explorer_history.db'}", bus.run)
    assert history.counts() == {"messages": 12, "judged": 12, "committed": 12, "groups": 6, "groups_published": 6}
    history.close()
