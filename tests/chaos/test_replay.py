"""Past runs trained again: the same batches, the original untouched, whoever dies meanwhile.

The fake backend's state is a digest of its batches in order: equal digests mean equal training.
"""

import asyncio
import copy
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bus.jetstream import connect
from bus.server import LocalServer
from bus.subjects import Stream

STEPS = 12


def _digest(run_dir: Path, step: int = STEPS) -> str:
    state = json.loads((run_dir / f"global_step_{step}" / "actor" / "fake_state.json").read_text(encoding="utf-8"))
    assert state["step"] == step
    return str(state["digest"])


def _bytes_of(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def config(config: dict[str, Any]) -> dict[str, Any]:
    """All versions are kept, so that all can be compared."""
    config["synchronizer"]["keep_versions"] = -1
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.02}
    return config


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


@pytest.mark.chaos
async def test_a_run_whose_trainer_was_killed_is_verified_and_left_as_it_was(start, config) -> None:
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 6)
        os.kill(await run.pid_of(bus, "trainer"), signal.SIGKILL)
        assert await run.ends() == 0
    before = _bytes_of(run.config.run_dir)

    verified = start(config, "replay", "--verify", file="verify.yaml")
    assert await verified.ends() == 0, verified.output
    assert "version 7: bit-identical" in verified.output
    assert "checkpoint 12, model and optimizer: bit-identical" in verified.output
    assert "14 of 14 are bit-identical" in verified.output
    assert not (run.config.run_dir.parent / "fake-verify").exists()

    part = start(config, "replay", "--verify", "--from-step", "4", "--to-step", "8", file="part.yaml")
    assert await part.ends() == 0, part.output
    assert "6 of 6 are bit-identical" in part.output
    assert _bytes_of(run.config.run_dir) == before

    other = copy.deepcopy(config)
    other["buffer"]["train_batch_size"] = 8
    different = start(other, "replay", "--verify", "--to-step", "4", file="different.yaml")
    assert await different.ends() == 1
    assert "checkpoint 4, model and optimizer: fake_state.json: its contents differ" in different.output
    assert _bytes_of(run.config.run_dir) == before


@pytest.mark.chaos
async def test_two_replays_at_once_begin_where_they_are_told_and_survive_a_kill(start, config) -> None:
    run = start(config)
    assert await run.ends() == 0
    before = _bytes_of(run.config.run_dir)
    whole, later = copy.deepcopy(config), copy.deepcopy(config)
    whole["trainer"]["save_interval"] = 1
    first = start(whole, "replay", "--as", "whole", "--live", file="whole.yaml")
    second = start(later, "replay", "--as", "later", "--from-step", "8", file="later.yaml")
    root = run.config.run_dir.parent
    await _kill_trainer(first, root / "whole")
    assert await second.ends() == 0, second.output
    assert await first.ends() == 0, first.output
    assert "service_restarting" in first.output
    assert _digest(root / "whole") == _digest(root / "later") == _digest(run.config.run_dir)
    assert not (root / "whole" / "source").exists()
    assert _bytes_of(run.config.run_dir) == before
    ledger = json.loads((root / "later" / "global_step_12" / "ledger.json").read_text())
    assert ledger["counts"]["trained"] == 192


async def _kill_trainer(process: Any, run_dir: Path) -> None:
    """Once the replay has committed a checkpoint, in the middle of its work."""
    while not [*run_dir.glob("global_step_*")]:
        assert process.process.poll() is None, process.output
        await asyncio.sleep(0.01)
    url = json.loads((run_dir / "bus.json").read_text())["url"]
    bus = await connect(url, f"tests/{run_dir.name}", name="test")
    try:
        os.kill(await process.pid_of(bus, "trainer"), signal.SIGKILL)
    finally:
        await bus.close()


@pytest.mark.chaos
async def test_shadow_trainers_follow_a_live_run_with_batches_of_their_own(start, config, server) -> None:
    config["bus"]["url"] = server.url
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2)
        other = copy.deepcopy(config)
        other["buffer"] |= {"train_batch_size": 32, "total_steps": None}
        equal = start(config, "replay", "--follow", "--as", "equal", file="equal.yaml")
        larger = start(other, "replay", "--follow", "--as", "larger", file="larger.yaml")
        assert await run.ends() == 0
        held = await bus.state(Stream.EXPERIENCES)
        assert await equal.ends() == 0, equal.output
        assert await larger.ends() == 0, larger.output
        assert await bus.state(Stream.EXPERIENCES) == held
    root = run.config.run_dir.parent
    assert _digest(root / "equal") == _digest(run.config.run_dir)
    assert _digest(root / "larger", 6) != _digest(run.config.run_dir)
    assert "192 experiences trained" in larger.output


@pytest.mark.chaos
async def test_exported_and_imported_experiences_train_the_same(start, config, tmp_path) -> None:
    run = start(config)
    assert await run.ends() == 0
    past, new = str(tmp_path / "past.parquet"), str(tmp_path / "new.parquet")
    for command in (
        ("export", "--out", past),
        ("import", past, "--as", "carried"),
        ("export", "--out", new, "--set", "name=carried"),
        ("replay", "--source", "carried", "--as", "again"),
    ):
        step = start(config, *command, file=f"{command[0]}.yaml")
        assert await step.ends() == 0, step.output
    assert _digest(run.config.run_dir.parent / "again") == _digest(run.config.run_dir)
    before, after = parquet.read_table(past), parquet.read_table(new)
    for name in set(before.column_names) - {"stored_at", "run"}:
        assert after.column(name).equals(before.column(name)), name

    twice = start(config, "import", past, "--as", "carried", file="twice.yaml")
    assert await twice.ends() == 2
    assert "error: run tests/carried has had 48 messages of experiences already" in twice.output


@pytest.mark.chaos
async def test_a_rescored_stream_trains_on_the_new_rewards(start, config, tmp_path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "vowels.py").write_text(
        "from services.rollout.rewards import register_reward\n"
        "@register_reward('vowels')\n"
        "def vowels(answer, weight=1.0):\n"
        "    return {'vowels': weight * sum(letter in 'aeiou' for letter in answer.response)}\n"
    )
    run = start(config)
    assert await run.ends() == 0
    plugin = ("--plugin-dir", str(tmp_path / "plugins"))
    rescored = start(config, "rescore", "--as", "scored", "--reward", "vowels", *plugin, file="rescore.yaml")
    assert await rescored.ends() == 0, rescored.output
    assert "192 experiences in 48 groups" in rescored.output
    replayed = start(config, "replay", "--source", "scored", "--as", "again", file="again.yaml")
    assert await replayed.ends() == 0, replayed.output
    out = tmp_path / "scored.parquet"
    assert await start(config, "export", "--out", str(out), "--set", "name=scored", file="export.yaml").ends() == 0
    for row in parquet.read_table(out).to_pylist():
        vowels = float(sum(letter in "aeiou" for letter in row["response_text"]))
        assert (row["reward"], row["metrics"]) == (vowels, [("vowels", vowels)])
    assert _digest(run.config.run_dir.parent / "again") != _digest(run.config.run_dir)
