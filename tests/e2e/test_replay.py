"""With the real trainer: a run that was interrupted is made again bit by bit: an adapter, or a model on two ranks."""

import copy
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bus.port import Bus
from bus.server import LocalServer
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.account.snapshot import snapshot

STEPS, TASKS_A_STEP, ANSWERS = 4, 4, 4


def _group(run: str, ordinal: int) -> GroupSampled:
    """Answers of different lengths and rewards, as an engine might have sampled them."""
    chance = np.random.default_rng(ordinal)

    def experience(position: int) -> Experience:
        length = int(chance.integers(2, 9))
        return Experience(
            position=position,
            tokens=chance.integers(0, 200, 5 + length).astype(np.int32),
            prompt_length=5,
            action_mask=np.ones(length, np.uint8),
            logprobs=np.full(length, -5.3, np.float32),
            token_versions=np.zeros(length, np.int32),
            reward=float(position % 2),
        )

    identity = TaskIdentity(ordinal=ordinal, batch=ordinal // TASKS_A_STEP, taskset="sums", epoch=0, index=ordinal)
    experiences = tuple(experience(position) for position in range(ANSWERS))
    return GroupSampled(run=run, task=identity, repeat_times=ANSWERS, explorer="e", experiences=experiences)


async def _fill(bus: Bus) -> None:
    for ordinal in range(STEPS * TASKS_A_STEP):
        await bus.publish(_group(bus.run, ordinal))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


async def _killed_on_the_way(start, config, run) -> None:
    async with run.bus() as bus:
        await _fill(bus)
        await run.until(bus, lambda found: found.step >= 3, patience_s=240)
        os.kill(await run.pid_of(bus, "trainer"), signal.SIGKILL)
        await _finished(run, bus)
    assert (run.config.run_dir / "weights" / "version_2.2").is_dir()


async def _stopped_on_the_way(start, config, run) -> None:
    async with run.bus() as bus:
        await _fill(bus)
        await run.until(bus, lambda found: found.step >= 1, patience_s=240)
        run.process.send_signal(signal.SIGTERM)
        assert await run.ends() == 130
        stopped = await snapshot(bus)
        assert stopped.train.checkpoint_step == stopped.step  # the last step is in a checkpoint
        await _finished(start(config), bus)


async def _finished(run, bus: Bus) -> None:
    await run.until(bus, lambda found: bool(found.train and found.train.is_finished), patience_s=240)
    run.process.send_signal(signal.SIGTERM)
    assert await run.ends() == 130


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("ranks", "interrupted", "adapters"), [(1, _stopped_on_the_way, [{"lora_rank": 4}]), (2, _killed_on_the_way, None)]
)
async def test_a_resumed_run_is_verified_bit_by_bit(
    start, real_config, server, ranks: int, interrupted, adapters
) -> None:
    config: dict[str, Any] = copy.deepcopy(real_config) | {"mode": "train", "bus": {"url": server.url}}
    config["model"]["lora_configs"] = adapters
    config["cluster"] = {"gpu_per_node": 0, "trainer_ranks": ranks}
    config["buffer"]["total_steps"] = STEPS
    config["synchronizer"] = {"keep_versions": -1}
    config["trainer"]["save_interval"] = 2
    run = start(config)
    await interrupted(start, config, run)

    verified = start(config, "replay", "--verify", file="verify.yaml")
    assert await verified.ends(patience_s=240) == 0, verified.output
    for step in range(STEPS + 1):
        assert f"version {step}: bit-identical" in verified.output
    assert f"checkpoint {STEPS}, model and optimizer: bit-identical" in verified.output
    assert f"{STEPS + 2} of {STEPS + 2} are bit-identical" in verified.output
