"""`trinity audit` finds a sound run sound, and names what is wrong with a ledger that was tampered with."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus.server import LocalServer
from services.trainer.checkpoints import LEDGER_FILE, checkpoints

TASKS = 48
EXPERIENCES = 192


async def audited(run: Any, *options: str) -> tuple[int, str]:
    """The exit status and the output of the real command."""
    path = run.log_path.parent / "run.yaml"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "audit", "--config", str(path), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode or 0, output.decode()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _tampered(run: Any, change: Any) -> None:
    path = checkpoints(run.config.run_dir)[-1].directory / LEDGER_FILE
    body = json.loads(path.read_text(encoding="utf-8"))
    change(body)
    path.write_text(json.dumps(body), encoding="utf-8")


@pytest.mark.chaos
async def test_a_run_audits_as_sound_while_it_runs_and_when_it_is_over(start, config, server) -> None:
    config["bus"]["url"] = server.url
    config["explorer"]["rollout_model"]["engine_num"] = 2
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 6)
        status, output = await audited(run, "--json")
        during = json.loads(output)
        assert status == 0, output
        assert during["ledger"]["step"] in (4, 8, 12)
        assert during["experiences"]["trained"] == during["ledger"]["step"] * 16
        assert during["experiences"]["uncommitted"] <= during["experiences"]["waiting"]
        assert during["tasks"]["missing"] == 0
        assert await run.ends() == 0
    status, output = await audited(run, "--json")
    found = json.loads(output)
    assert status == 0, output
    assert found["is_sound"]
    assert (found["tasks"]["released"], found["tasks"]["answered"], found["tasks"]["waiting"]) == (TASKS, TASKS, 0)
    experiences = found["experiences"]
    assert (experiences["trained"], experiences["lost"], experiences["twice"]) == (EXPERIENCES, 0, 0)
    assert sum(found["staleness"].values()) == found["tokens"]["trained"]
    assert set(found["staleness"]) <= {"0", "1"}  # the bound of sync_interval 1 and sync_offset 1
    assert set(found["explorers"]) == {"explorer", "explorer_1"}
    assert sum(tally["trained"] for tally in found["explorers"].values()) == EXPERIENCES
    assert found["lineage"] == [{"incarnation": 1, "step": 0}]
    summary = run.summary()
    assert summary["experiences"] == experiences
    assert summary["tasks"] == {"released": TASKS, "answered": TASKS, "quarantined": 0}


@pytest.mark.chaos
async def test_a_ledger_that_was_tampered_with_fails_the_audit_by_name(start, config) -> None:
    config["buffer"]["total_steps"] = 4
    run = start(config)
    assert await run.ends() == 0
    status, output = await audited(run)
    assert (status, "lost 0, twice 0" in output) == (0, True), output

    def without_task_5(body: dict[str, Any]) -> None:
        body["ordinals"] = {"floor": 5, "above": list(range(6, body["ordinals"]["floor"]))}

    def task_5_twice(body: dict[str, Any]) -> None:
        body["ordinals"] = {"floor": 5, "above": [5, *range(5, 16)]}

    def counted_twice(body: dict[str, Any]) -> None:
        body["ordinals"] = {"floor": 16, "above": []}
        body["counts"]["trained"] += 4

    for change, lost, twice, name in (
        (without_task_5, 4, 0, "task 5, answered at sequence"),
        (task_5_twice, 0, 4, "ordinal 5: more than once in the ledger"),
        (counted_twice, 0, 4, "trained: the ledger counts 68, the stream makes 64"),
    ):
        _tampered(run, change)
        status, output = await audited(run)
        assert status == 3, output
        assert f"DISAGREES: {name}" in output
        assert f"lost {lost}, twice {twice}" in output


@pytest.mark.chaos
async def test_a_freed_stream_is_accounted_for_by_the_oldest_checkpoint_that_holds_it(start, config) -> None:
    config["buffer"]["retain"] = "checkpoint"
    config["trainer"] |= {"save_interval": 2, "max_checkpoints_to_keep": 2}
    run = start(config)
    assert await run.ends() == 0
    status, output = await audited(run, "--json")
    found = json.loads(output)
    assert status == 0, output
    assert found["ledger"]["independent_from"] > 1
    assert any("has been freed" in note for note in found["notes"])
    assert found["experiences"]["published"] == found["experiences"]["trained"] == EXPERIENCES
    assert found["tasks"]["answered"] == TASKS
