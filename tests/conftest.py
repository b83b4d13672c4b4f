"""Runs as a person starts them: real processes, a real bus, and a fake engine and backend unless a test says more."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from bus.port import Bus
from schemas.reports import ServiceName
from schemas.state import MemberSeen
from services.account.snapshot import Snapshot, snapshot
from services.config.load import load
from services.runtime.bus_access import join, known_url
from services.runtime.keys import MEMBERS

PATIENCE_S = 90.0


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that a test runs in this process writes its logs to an output that is closed after it."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def sums(path: Path, rows: int) -> Path:
    """A small taskset of additions."""
    lines = [json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fake_config(root: Path) -> dict[str, Any]:
    """A run of 12 steps in a few seconds, without a model."""
    taskset = {
        "name": "sums",
        "path": str(sums(root / "sums.jsonl", 32)),
        "default_workflow_type": "exact_match_workflow",
        "format": {"prompt_type": "plaintext", "prompt_key": "prompt", "response_key": "answer"},
    }
    return {
        "mode": "both",
        "project": "tests",
        "name": "fake",
        "checkpoint_root_dir": str(root / "checkpoints"),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 4, "kl_loss_fn": "none"},
        "model": {"model_path": "none", "max_prompt_tokens": 64, "max_response_tokens": 6},
        "buffer": {"batch_size": 4, "total_steps": 12, "explorer_input": {"taskset": taskset}},
        "explorer": {
            "leave_timeout": 5,
            "rollout_model": {"engine_type": "fake", "extra_engine_args": {"delay_s_per_token": 0.05}},
        },
        "synchronizer": {
            "sync_offset": 1,
            "task_lease": 3,
            "heartbeat_interval": 0.5,
            "member_timeout": 3,
            "lease_ttl": 3,
        },
        "trainer": {"trainer_type": "fake", "save_interval": 4},
        "bus": {"max_experience_bytes": 64 * 2**20},
    }


class RunProcess:
    """A `trinity` command in a process of its own."""

    def __init__(self, config_path: Path, *command: str) -> None:
        self.config = load(config_path).config
        self.log_path = config_path.with_suffix(f".{command[0]}.log")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", *command, "--config", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    async def ends(self, patience_s: float = PATIENCE_S) -> int:
        """The exit status."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {patience_s} s:\n{self.output[-3000:]}"
            await asyncio.sleep(0.1)
        return self.process.returncode

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """The run's bus, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while known_url(self.config) is None:
            assert self.process.poll() is None, self.output[-3000:]
            assert time.monotonic() < deadline, self.output[-3000:]
            await asyncio.sleep(0.05)
        bus = await join(self.config, "test")
        try:
            yield bus
        finally:
            await bus.close()

    async def until(self, bus: Bus, reached: Callable[[Snapshot], bool], patience_s: float = PATIENCE_S) -> Snapshot:
        """The first snapshot of which `reached` is true."""
        deadline = time.monotonic() + patience_s
        while True:
            found = await snapshot(bus)
            if reached(found):
                return found
            assert time.monotonic() < deadline, f"not reached: {found.as_json()}\n{self.output[-3000:]}"
            assert self.process.poll() is None, f"it ended before: {self.output[-3000:]}"
            await asyncio.sleep(0.05)

    async def pid_of(self, bus: Bus, service: ServiceName) -> int:
        """The process of a service, from its heartbeat."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for entry in await bus.entries(f"{MEMBERS}{service}."):
                if isinstance(entry.message, MemberSeen):
                    return entry.message.pid
            assert time.monotonic() < deadline, f"no {service} was seen"
            await asyncio.sleep(0.05)

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.config.run_dir / "summary.json").read_text(encoding="utf-8"))
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


Start = Callable[..., RunProcess]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """The configuration of a fake run, to be changed before it is started."""
    return fake_config(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command on a configuration; what still runs at the end of the test is stopped."""
    started: list[RunProcess] = []

    def begin(config: dict[str, Any], *command: str, file: str = "run.yaml") -> RunProcess:
        path = tmp_path / file
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        started.append(RunProcess(path, *(command or ("run",))))
        return started[-1]

    yield begin
    for process in reversed(started):
        process.stop()
