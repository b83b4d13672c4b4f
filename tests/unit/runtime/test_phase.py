"""Whether a run that was finished is over is told at once where that can be known."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus.jetstream import connect
from bus.port import Bus
from bus.server import LocalServer
from schemas.state import ReleaseProgress, RunDeclared, TrainProgress
from schemas.weights import WeightVersion
from services.config.secrets import shareable
from services.config.tree import RunConfig
from services.runtime.context import LAUNCHED_AT, Context
from services.runtime.keys import DECLARED, RELEASE, TRAIN
from services.runtime.member import Member


def _config(mode: str = "train", **buffer: Any) -> RunConfig:
    return RunConfig.model_validate({"mode": mode, "project": "p", "name": "n", "buffer": buffer})


@pytest.fixture
async def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """That of a run which was finished after 8 steps, a minute ago."""
    monkeypatch.delenv(LAUNCHED_AT, raising=False)
    server = LocalServer(tmp_path / "store")
    await server.start()
    bus = await connect(server.url, "p/n", name="test")
    await bus.declare()
    ended_at = time.time() - 60
    declared = RunDeclared(run="p/n", run_dir="/x", config=shareable(_config(total_epochs=2)), declared_at=1.0)
    await bus.put(DECLARED, declared)
    await bus.put(TRAIN, TrainProgress(weights=WeightVersion(version=8, incarnation=1), step=8, is_finished=True))
    await bus.put(RELEASE, ReleaseProgress(term=1, phase="finished", released=9, batches=3, updated_at=ended_at))
    yield bus
    await bus.close()
    await server.stop()


async def _phase(bus: Bus, config: RunConfig) -> str | None:
    return await Context(config, bus, Member("monitor", "m")).phase()


async def test_a_run_that_has_the_steps_that_are_wanted_is_over_for_whoever_comes_later(bus: Bus) -> None:
    assert await _phase(bus, _config(total_steps=8)) == "finished"
    assert await _phase(bus, _config(total_steps=9)) == "draining"


async def test_a_run_of_epochs_is_over_where_its_configuration_is_the_one_that_was_declared(bus: Bus) -> None:
    assert await _phase(bus, _config(total_epochs=2)) == "finished"
    assert await _phase(bus, _config(total_epochs=3)) == "draining"


async def test_a_member_that_is_started_again_believes_what_was_said_since_its_launcher_began(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAUNCHED_AT, str(time.time() - 600))
    assert await _phase(bus, _config("both", total_steps=9)) == "finished"


async def test_beside_a_synchronizer_that_was_just_started_an_old_word_says_nothing_of_epochs(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAUNCHED_AT, str(time.time()))
    assert await _phase(bus, _config("both", total_epochs=2)) == "draining"
    assert await _phase(bus, _config("train", total_epochs=2)) == "finished"
    assert await _phase(bus, _config("both", total_steps=9)) == "draining"
    assert await _phase(bus, _config("both", total_steps=8)) == "finished"
