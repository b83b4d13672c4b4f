"""A taskset whose rows are chosen by live pass rates: each task is one row, whoever dies while it is chosen."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bus.port import Bus
from bus.server import LocalServer
from schemas.state import RowsChosen
from services.account.table import rows
from services.runtime.keys import choice_key

TASKS, ROWS = 48, 32


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _side(config: dict[str, Any], url: str, mode: str) -> dict[str, Any]:
    return config | {"mode": mode, "bus": {**config["bus"], "url": url}}


async def _kill_leader(bus: Bus) -> None:
    holder = await bus.lease_holder("synchronizer")
    assert holder is not None
    found = await bus.get(f"member.synchronizer.{holder.holder}")
    assert found is not None
    os.kill(found.message.pid, signal.SIGKILL)


@pytest.mark.chaos
async def test_a_standby_gives_each_task_the_row_that_was_recorded_for_it(start, config, server) -> None:
    selector = {"selector_type": "difficulty_based", "kwargs": {"target_reward": 0.5, "tau": 0.1}}
    config["buffer"]["explorer_input"]["taskset"]["data_selector"] = selector
    config["trainer"]["trainer_config"] = {"seconds_per_step": 1.0}
    run = start(_side(config, server.url, "both"))
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 1)
        standby = start(_side(config, server.url, "explore"), "synchronizer", file="standby.yaml")
        await run.until(bus, lambda found: len(found.members) == 5)
        await _kill_leader(bus)
        assert await run.ends() == 0
        assert await standby.ends() == 0
        sampled = {(row["ordinal"], row["epoch"], row["index"]) async for row in rows(bus)}
        held = await bus.get(choice_key("sums"))
    assert held is not None
    assert isinstance(held.message, RowsChosen)
    record = held.message
    assert (record.first, len(record.rows), len(record.taken), int(record.taken.sum())) == (0, TASKS, ROWS, TASKS)
    recorded = zip(range(TASKS), record.epochs.tolist(), record.rows.tolist(), strict=True)
    assert sampled == set(recorded)
    assert len({(epoch, index) for _, epoch, index in sampled}) == TASKS
    assert run.summary()["tasks"] == {"released": TASKS, "answered": TASKS, "quarantined": 0}
    assert "rows_chosen" in standby.output + (run.config.run_dir / "log" / "synchronizer.log").read_text()
