"""A run goes back to an earlier step, and another run begins from its checkpoint: nothing of the former is lost."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated import Sampler, SteppedTrainer

from bus.jetstream import JetStreamBus, connect
from bus.server import LocalServer
from bus.subjects import Stream
from schemas.state import ReleaseProgress
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.load import load
from services.config.tree import RunConfig
from services.runtime.bus_access import settings
from services.runtime.context import Superseded
from services.runtime.keys import RELEASE, TRAIN
from services.trainer.checkpoints import checkpoints, fenced
from services.trainer.committing import CannotResume
from services.trainer.rewinding import CannotGoBack, go_back

STEPS, BATCH, REPEAT = 6, 2, 2


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    running = LocalServer(tmp_path / "store")
    await running.start()
    yield running
    await running.stop()


def _config(config: dict[str, Any], root: Path, name: str, resume_from_path: str = "") -> RunConfig:
    config |= {"name": name}
    config["algorithm"]["repeat_times"] = REPEAT
    config["buffer"] |= {"batch_size": BATCH, "total_steps": STEPS}
    config["trainer"] |= {"resume_from_path": resume_from_path}
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return load(path).config


async def _joined(server: LocalServer, config: RunConfig) -> JetStreamBus:
    """The bus of a run, with all answers on it."""
    bus = await connect(server.url, config.run_name, name="test", settings=settings(config))
    await bus.declare()
    sampled = Sampler()
    for ordinal in range(STEPS * BATCH):
        task = TaskIdentity(ordinal=ordinal, batch=ordinal // BATCH, taskset="sums", epoch=0, index=ordinal)
        released = TaskReleased(run=bus.run, task=task, repeat_times=REPEAT, workflow="w", row={})
        await bus.publish(sampled(released, WeightVersion()))
    return bus


async def _trained(config: RunConfig, bus: JetStreamBus, name: str) -> SteppedTrainer:
    """A trainer at the end of the run; it commits every second step."""
    trainer = await SteppedTrainer(config, bus, name).begin()
    await trainer.read()
    while await trainer.train():
        if trainer.step % 2 == 0:
            await trainer.save()
    return trainer


@pytest.mark.chaos
async def test_a_run_that_went_back_trains_on_the_same_again_and_keeps_what_it_left(server, config, tmp_path) -> None:
    run = _config(config, tmp_path, "run")
    bus = await _joined(server, run)
    first = await _trained(run, bus, "first")
    with pytest.raises(CannotGoBack, match="no checkpoint of step 5 in force: there are 2, 4, 6"):
        await go_back(bus, run.run_dir, 5)
    next((run.run_dir / "global_step_4" / "actor").iterdir()).write_text("{}")
    with pytest.raises(CannotGoBack, match="global_step_4 is damaged"):
        await go_back(bus, run.run_dir, 4)
    await bus.put(RELEASE, ReleaseProgress(term=1, phase="finished", released=12, batches=6))
    await go_back(bus, run.run_dir, 2)
    said, release = (await bus.get(TRAIN)).message, (await bus.get(RELEASE)).message
    assert (said.step, said.answered_floor, said.is_finished, said.read_sequence) == (2, 4, False, 4)
    assert (release.phase, release.released) == ("draining", 12)
    with pytest.raises(Superseded):
        await first.save()
    second = await _trained(run, bus, "second")
    assert (second.step, second._backend.digest) == (STEPS, first._backend.digest)
    assert [(found.step, found.ledger().incarnation) for found in checkpoints(run.run_dir)] == [(2, 1), (4, 3), (6, 3)]
    left = fenced(run.run_dir)
    assert [(found.directory.name, found.ledger().incarnation) for found in left] == [
        ("global_step_4.1", 1),
        ("global_step_6.1", 1),
    ]
    await bus.close()


@pytest.mark.chaos
async def test_a_run_does_not_go_back_to_what_the_stream_no_longer_holds(server, config, tmp_path) -> None:
    run = _config(config, tmp_path, "run")
    bus = await _joined(server, run)
    last = await _trained(run, bus, "first")
    await bus.purge(Stream.EXPERIENCES, up_to=last.ledger.sequences.floor - 1)
    with pytest.raises(CannotResume, match="what lies between was freed for a later checkpoint"):
        await go_back(bus, run.run_dir, 2)
    assert [found.step for found in checkpoints(run.run_dir)] == [2, 4, 6]
    assert (await _trained(run, bus, "second")).step == STEPS
    await bus.close()


@pytest.mark.chaos
async def test_a_run_begins_from_the_checkpoint_of_another_with_a_ledger_of_its_own(server, config, tmp_path) -> None:
    run = _config(config, tmp_path, "run")
    bus = await _joined(server, run)
    await _trained(run, bus, "first")
    await bus.close()
    other = _config(config, tmp_path, "other", str(run.run_dir / "global_step_4"))
    bus = await _joined(server, other)
    begun = await SteppedTrainer(other, bus, "begun").begin()
    assert (begun.step, begun.ledger.sequences.floor, begun._backend._step) == (0, 1, 4)
    await begun.read()
    await begun.train()
    await begun.save()
    resumed = await SteppedTrainer(other, bus, "resumed").begin()
    assert (resumed.step, resumed._backend._step, resumed._backend.digest) == (1, 5, begun._backend.digest)
    next((run.run_dir / "global_step_4" / "actor").iterdir()).write_text("{}")
    third = _config(config, tmp_path, "third", str(run.run_dir / "global_step_4"))
    with pytest.raises(CannotResume, match=r"resume_from_path=.*global_step_4 is damaged"):
        await SteppedTrainer(third, bus, "third").begin()
    await bus.close()
