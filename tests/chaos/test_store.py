"""The stores of a run hold each experience of its stream once, whoever dies and whatever is locked meanwhile."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from bus.subjects import Stream
from services.runtime.bus_access import join_for_reading
from services.store.build import stored_answers, stored_rows
from services.store.place import place_of
from services.store.sql_schema import ExperienceModel
from services.trainer.checkpoints import checkpoints

EXPERIENCES = 192


async def _stream(run: Any) -> list[tuple[int, Any]]:
    """What the run has left on its bus."""
    bus, server = await join_for_reading(run.config, "test")
    try:
        return [(each.sequence, each.message) async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    finally:
        await bus.close()
        if server is not None:
            await server.stop()


def _named(config: dict[str, Any], root: Path) -> dict[str, str]:
    """Name a store of each kind in the configuration."""
    paths = {
        "sql": f"sqlite:///{root}/stored/run.db",
        "jsonl": f"{root}/stored/run.jsonl",
        "parquet": f"{root}/stored/run.parquet",
    }
    config["buffer"]["trainer_input"] = {"experience_buffer": {"storage_type": "sql", "path": paths["sql"]}}
    config["buffer"]["explorer_output"] = {"storage_type": "file", "path": paths["jsonl"]}
    config["data_processor"] = {"experience_pipeline": {"input_save_path": paths["parquet"]}}
    return paths


async def _killed(run: Any, bus: Any, database: Path, before: int) -> int:
    """Kill the monitor as soon as it has stored more than `before`. Returns how far it was."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stored = _position(database)
        if stored > before:
            pids = [entry.message.pid for entry in await bus.entries("member.monitor.")]
            os.kill(max(pids), signal.SIGKILL)
            return stored
        await asyncio.sleep(0.05)
    raise AssertionError(f"no monitor stores anything: {run.output[-2000:]}")


def _position(database: Path) -> int:
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(database)) as connection, contextlib.suppress(sqlite3.OperationalError):
        found = connection.execute("select sequence from store_position").fetchone()
        return int(found[0]) if found else 0
    return 0


@pytest.mark.chaos
async def test_every_store_holds_each_experience_once_though_the_monitor_is_killed_again_and_again(
    start, config, tmp_path
) -> None:
    paths = _named(config, tmp_path)
    config["trainer"]["trainer_config"] = {"seconds_per_step": 2.0}  # time for a monitor to come back
    run = start(config)
    async with run.bus() as bus:
        database = tmp_path / "stored" / "run.db"
        first = await _killed(run, bus, database, 0)
        await _killed(run, bus, database, first)
        assert await run.ends() == 0
    stream = await _stream(run)
    assert sum(len(group.experiences) for _, group in stream) == EXPERIENCES
    for path in paths.values():
        assert list(stored_answers(place_of(path), run.config.run_name)) == stream
    with sqlite3.connect(tmp_path / "stored" / "run.db") as connection:
        assert connection.execute("select count(*), sum(consumed) from experience").fetchone() == (192, 192)
    connection.close()


@pytest.mark.chaos
async def test_stored_experiences_are_read_as_the_faq_does_and_training_on_them_makes_the_same_weights_again(
    start, config, tmp_path
) -> None:
    paths = _named(config, tmp_path)
    sampled = start(config)
    assert await sampled.ends() == 0
    _assert_read_as_the_faq_does(paths["sql"], await _stream(sampled))
    del config["data_processor"], config["buffer"]["explorer_output"], config["buffer"]["total_steps"]
    for kind, path in (("sql", paths["sql"]), ("jsonl", paths["jsonl"])):
        buffer = {"storage_type": "sql" if kind == "sql" else "file", "path": path}
        changed = config | {"mode": "train", "name": f"on_{kind}"}
        changed["buffer"] = config["buffer"] | {"trainer_input": {"experience_buffer": buffer}}
        trained = start(changed, file=f"{kind}.yaml")
        if kind == "jsonl":
            async with trained.bus() as bus:
                await trained.until(bus, lambda found: found.step >= 2)
                os.kill(await trained.pid_of(bus, "trainer"), signal.SIGKILL)
        assert await trained.ends() == 0
        assert _state(trained) == _state(sampled)
        summary = trained.summary()
        assert (summary["phase"], summary["steps"], summary["experiences"]["trained"]) == ("finished", 12, EXPERIENCES)


def _assert_read_as_the_faq_does(path: str, stream: list[tuple[int, Any]]) -> None:
    engine = create_engine(path)
    session = sessionmaker(bind=engine)
    sess = session()
    experiences = sess.query(ExperienceModel).limit(4).all()
    exp_list = [ExperienceModel.to_experience(exp) for exp in experiences]
    sequence, group = stream[0]
    assert exp_list == list(group.experiences)
    model = experiences[0]
    assert (model.sequence, model.task_id, model.model_version) == (sequence, group.task.task_id, 0)
    assert model.msg_id == f"tests/fake:answer:{group.task.ordinal}:0"
    sess.close()
    engine.dispose()


def _state(run: Any) -> Any:
    newest = checkpoints(run.config.run_dir)[-1]
    return json.loads((newest.directory / "actor" / "fake_state.json").read_text())


@pytest.mark.chaos
async def test_nothing_is_freed_of_the_stream_that_a_store_lacks_and_a_full_one_says_so(
    start, config, tmp_path
) -> None:
    path = f"sqlite:///{tmp_path}/run.db"
    config["buffer"] |= {"retain": "checkpoint", "trainer_input": {"experience_buffer": {"path": path}}}
    config["bus"]["max_experience_bytes"] = 24_000
    config["trainer"] |= {"save_interval": 1, "max_checkpoints_to_keep": 1}
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.0
    blocker = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    blocker.execute("create table other (id int)")
    blocker.execute("BEGIN EXCLUSIVE")
    run = start(config)
    async with run.bus() as bus:
        found = await run.until(bus, lambda found: "its stores have it only up to sequence 0" in _waits_for(found))
        assert found.step < 12
        assert (await bus.state(Stream.EXPERIENCES)).first == 1
        blocker.execute("ROLLBACK")
        blocker.close()
        assert await run.ends() == 0
    assert len(list(stored_rows(place_of(path)))) == EXPERIENCES
    summary = run.summary()["experiences"]
    assert (summary["trained"], summary["lost"]) == (EXPERIENCES, 0)


def _waits_for(found: Any) -> str:
    return found.train.waiting_for if found.train else ""


@pytest.mark.chaos
async def test_a_run_waits_for_nobody_while_its_database_is_locked_and_the_database_catches_up(
    start, config, tmp_path
) -> None:
    path = _named(config, tmp_path)["sql"]
    run = start(config)
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= 2 and _position(tmp_path / "stored" / "run.db") > 0)
        blocker = sqlite3.connect(tmp_path / "stored" / "run.db", isolation_level=None, timeout=30)
        blocker.execute("BEGIN IMMEDIATE")
        held = [row["sequence"] for row in stored_rows(place_of(path))]
        await run.until(bus, lambda found: found.step == 12)
        log = run.config.run_dir / "log" / "monitor.log"
        await run.until(bus, lambda found: "database is locked" in log.read_text())
        assert [row["sequence"] for row in stored_rows(place_of(path))] == held
        assert len(held) < EXPERIENCES
        blocker.execute("ROLLBACK")
        blocker.close()
        assert await run.ends() == 0
    assert list(stored_answers(place_of(path), run.config.run_name)) == await _stream(run)
