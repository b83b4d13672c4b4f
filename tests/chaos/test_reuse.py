"""A run that trains on experiences more than once: whoever dies, each use is by the rule that the ledger declares, and
a replay makes the same weights."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated import Sampler, SteppedTrainer

from bus.errors import StreamFull
from bus.jetstream import JetStreamBus, connect
from bus.server import LocalServer
from bus.subjects import Stream
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.load import load
from services.runtime.bus_access import settings
from services.trainer.checkpoints import checkpoints
from services.trainer.reuse.reserve import ReserveLost

STEPS, FRESH, WHOLE, CAPACITY = 12, 16, 32, 40


@pytest.fixture
def config(config: dict[str, Any]) -> dict[str, Any]:
    """Steps of twice a released batch, up to three uses of each experience."""
    replay_buffer = {
        "enable": True,
        "priority_fn": "decay_limit_randomization",
        "priority_fn_args": {"decay": 2.0, "use_count_limit": 3, "sigma": 1.0},
        "reuse_cooldown_time": 0.3,
    }
    config["buffer"]["train_batch_size"] = WHOLE
    config["buffer"]["trainer_input"] = {"experience_buffer": {"capacity": CAPACITY, "replay_buffer": replay_buffer}}
    config["synchronizer"]["keep_versions"] = -1
    config["trainer"]["save_interval"] = 2
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.02}
    return config


@pytest.mark.chaos
async def test_a_killed_trainer_uses_again_what_it_would_have_and_a_replay_does_too(start, config) -> None:
    run = start(config)
    async with run.bus() as bus:
        for step in (3, 7):
            await run.until(bus, lambda found, step=step: found.step >= step)
            os.kill(await run.pid_of(bus, "trainer"), signal.SIGKILL)
        assert await run.ends() == 0, run.output
    assert "reserve_restored" in (run.config.run_dir / "log" / "trainer.log").read_text()
    ledger = checkpoints(run.config.run_dir)[-1].ledger()
    counts = ledger.counts
    assert (ledger.step, counts.trained, counts.filtered) == (STEPS, STEPS * FRESH, {})
    assert 0 < counts.reused <= (STEPS - 1) * (WHOLE - FRESH)
    assert [since.from_step for since in ledger.reuse.rules] == [1]
    assert 0 < ledger.reuse.pool.experiences <= CAPACITY
    summary = run.summary()
    told = summary["experiences"]
    assert (summary["disagreements"], told["lost"], told["twice"], told["reused"]) == ([], 0, 0, counts.reused)
    assert f" trained, {counts.reused} trained again, 0 waiting, " in run.output

    verified = start(config, "replay", "--verify", "--from-step", "2", file="verify.yaml")
    assert await verified.ends() == 0, verified.output
    assert f"{STEPS} of {STEPS} are bit-identical" in verified.output


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    running = LocalServer(tmp_path / "store")
    await running.start()
    yield running
    await running.stop()


async def _answered(bus: JetStreamBus, sampled: Sampler, ordinal: int) -> None:
    task = TaskIdentity(ordinal=ordinal, batch=ordinal // 4, taskset="sums", epoch=0, index=ordinal)
    released = TaskReleased(run=bus.run, task=task, repeat_times=4, workflow="w", row={})
    await bus.publish(sampled(released, WeightVersion()), deadline_s=0.5)


async def _train_on(trainer: SteppedTrainer, bus: JetStreamBus, sampled: Sampler) -> None:
    for ordinal in range(24, 200):
        await _answered(bus, sampled, ordinal)
        await trainer.read()
        if await trainer.train():
            await trainer.save()


@pytest.mark.chaos
async def test_what_may_be_used_again_is_never_freed_and_a_stream_full_of_it_says_so(server, config, tmp_path) -> None:
    config["buffer"] |= {"total_steps": 100, "retain": "1B"}
    buffer = config["buffer"]["trainer_input"]["experience_buffer"]
    buffer["replay_buffer"] |= {"priority_fn": "linear_decay", "priority_fn_args": {}, "reuse_cooldown_time": 0}
    config["bus"] |= {"max_experience_bytes": 60_000}
    path, sampled = tmp_path / "stepped.yaml", Sampler()

    async def begun() -> SteppedTrainer:
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return await SteppedTrainer(load(path).config, bus, "trainer").begin()

    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    run = load(path).config
    bus = await connect(server.url, run.run_name, name="test", settings=settings(run))
    await bus.declare()
    trainer = await begun()
    for ordinal in range(24):
        await _answered(bus, sampled, ordinal)
    await trainer.read()
    while await trainer.train():
        await trainer.save()
    pool = trainer.ledger.reuse.pool
    assert (pool.experiences, (await bus.state(Stream.EXPERIENCES)).first) == (CAPACITY, pool.first)
    assert await trainer.why_full() == ""

    buffer["capacity"] = 10_000
    trainer = await begun()
    with pytest.raises(StreamFull):
        await _train_on(trainer, bus, sampled)
    assert trainer.ledger.reuse.pool.first == pool.first
    assert "experience_buffer.capacity smaller, or raise bus.max_experience_bytes" in await trainer.why_full()

    await bus.purge(Stream.EXPERIENCES, up_to=(pool.first or 0) + 1)
    with pytest.raises(ReserveLost, match=rf"on 1 groups that .* \(sequence {pool.first} is the first\)"):
        await begun()
    buffer["replay_buffer"]["enable"] = False
    trainer = await begun()
    assert trainer.ledger.reuse.pool.first == pool.first
    await bus.close()
