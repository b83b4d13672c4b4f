"""Seconds from the death of a process until a run goes on, for each process, in a run that `trinity run` supervises.

A process ends by SIGKILL (or is frozen by SIGSTOP), and the clock stops when the experience stream and the trainer's
steps are past where they stood. A run with a fake engine and backend makes a step in a fraction of a
second, so that what is measured is recovery alone; loading real weights and a real model comes on top.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from roles import machine

from bus.port import Bus
from bus.subjects import Stream
from schemas.state import MemberSeen, ReleaseProgress, TrainProgress
from services.config.load import load
from services.config.tree import RunConfig
from services.runtime.bus_access import join, known_url
from services.runtime.keys import MEMBERS, RELEASE, TRAIN

PATIENCE_S = 180.0
LOOK_S = 0.02
STEPS_ON = 3
"""Steps after which a run has gone on for certain: what was in hand when the process died makes at most two."""


@dataclass(frozen=True)
class Place:
    """How far a run is."""

    stored: int
    step: int
    released: int


@dataclass(frozen=True)
class Recovered:
    """Seconds after the blow until a new experience was stored, and until `STEPS_ON` steps were made."""

    experience_s: float
    steps_s: float


def configuration(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """A run on policy with two explorers, which never ends by itself."""
    rows = "\n".join(json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(64))
    (root / "sums.jsonl").write_text(rows + "\n", encoding="utf-8")
    taskset = {
        "name": "sums",
        "path": str(root / "sums.jsonl"),
        "default_workflow_type": "exact_match_workflow",
        "format": {"prompt_type": "plaintext", "prompt_key": "prompt", "response_key": "answer"},
    }
    engine = {"engine_type": "fake", "engine_num": 2, "extra_engine_args": {"delay_s_per_token": 0.05}}
    return {
        "mode": "both",
        "project": "benchmarks",
        "name": "recovery",
        "checkpoint_root_dir": str(root / "checkpoints"),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 4, "kl_loss_fn": "none"},
        "model": {"model_path": "none", "max_prompt_tokens": 64, "max_response_tokens": 6},
        "buffer": {"batch_size": 4, "total_steps": 1_000_000, "explorer_input": {"taskset": taskset}},
        "explorer": {"runner_per_model": 2, "rollout_model": engine},
        "synchronizer": {
            "sync_offset": 1,
            "task_lease": arguments.task_lease,
            "member_timeout": arguments.member_timeout,
            "lease_ttl": arguments.lease_ttl,
        },
        "trainer": {"trainer_type": "fake", "save_interval": 5, "trainer_config": {"seconds_per_step": 0.2}},
    }


class Run:
    """A supervised run, as a person starts it."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        path = root / "recovery.yaml"
        path.write_text(yaml.safe_dump(configuration(root, arguments)), encoding="utf-8")
        self.config: RunConfig = load(path).config
        self._log = (root / "recovery.log").open("wb")
        program = [sys.executable, "-m", "services.cli", "run", "--config", str(path)]
        self._process = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self.bus: Bus

    async def begin(self) -> None:
        while known_url(self.config) is None:
            assert self._process.poll() is None, "the run ended at its start"
            await asyncio.sleep(LOOK_S)
        self.bus = await join(self.config, "recovery", observes=True)

    async def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        await self.bus.close()
        await asyncio.to_thread(self._process.wait)
        self._log.close()

    def server(self) -> int:
        """The process of its own bus."""
        children = psutil.Process(self._process.pid).children()
        return next(child.pid for child in children if child.name() == "nats-server")

    async def member(self, service: str, is_busy: bool = False) -> int:
        """The process of a service that is there; where `is_busy`, of one with tasks in hand."""
        while True:
            for entry in await self.bus.entries(f"{MEMBERS}{service}."):
                seen = entry.message
                if isinstance(seen, MemberSeen) and psutil.pid_exists(seen.pid) and (seen.tasks_in_hand or not is_busy):
                    return seen.pid
            await asyncio.sleep(LOOK_S)

    async def place(self) -> Place:
        train, release = await self.bus.get(TRAIN), await self.bus.get(RELEASE)
        return Place(
            stored=(await self.bus.state(Stream.EXPERIENCES)).last,
            step=train.message.step if train and isinstance(train.message, TrainProgress) else 0,
            released=release.message.released if release and isinstance(release.message, ReleaseProgress) else 0,
        )

    async def until(self, reached: Callable[[Place], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached(await self.place()):
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
            await asyncio.sleep(LOOK_S)


async def recovery(run: Run, blow: Callable[[], Awaitable[int | None]]) -> Recovered:
    """The times after one blow. It returns the process to wake afterwards, if any."""
    steady = (await run.place()).step + STEPS_ON
    await run.until(lambda now: now.step >= steady)
    before = await run.place()
    frozen = await blow()
    struck = time.monotonic()
    await run.until(lambda now: now.stored > before.stored + 2 * run.config.batch_size)
    experience_s = time.monotonic() - struck
    await run.until(lambda now: now.step >= before.step + STEPS_ON)
    steps_s = time.monotonic() - struck
    if frozen is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    return Recovered(experience_s, steps_s)


def blows(run: Run) -> dict[str, tuple[str, Callable[[], Awaitable[int | None]]]]:
    """What is done, by name, with the settings that decide how long it lasts."""

    def killing(service: str, is_busy: bool = False) -> Callable[[], Awaitable[None]]:
        async def kill() -> None:
            os.kill(await run.member(service, is_busy), signal.SIGKILL)

        return kill

    async def nothing() -> None:
        return None

    async def kill_server() -> None:
        os.kill(run.server(), signal.SIGKILL)

    async def freeze_explorer() -> int:
        pid = await run.member("explorer", is_busy=True)
        os.kill(pid, signal.SIGSTOP)
        return pid

    restart = "restart pause 1 s, process start"
    return {
        "nothing": ("steps of the run itself", nothing),
        "explorer, kill -9": (f"task_lease; {restart}", killing("explorer", is_busy=True)),
        "explorer, SIGSTOP": ("task_lease", freeze_explorer),
        "trainer, kill -9": (f"{restart}, steps since the checkpoint", killing("trainer")),
        "synchronizer, kill -9": (f"lease_ttl; {restart}", killing("synchronizer")),
        "server, kill -9": ("look for a dead bus 0.5 s, reconnect 0.5 s", kill_server),
    }


async def measure(arguments: argparse.Namespace) -> dict[str, list[Recovered]]:
    with tempfile.TemporaryDirectory(prefix="trinity-recovery-") as folder:
        run = Run(Path(folder), arguments)
        await run.begin()
        found: dict[str, list[Recovered]] = {}
        try:
            for _ in range(arguments.repeat):
                for name, (_, blow) in blows(run).items():
                    found.setdefault(name, []).append(await recovery(run, blow))
                    print(f"{name}: {found[name][-1]}", file=sys.stderr)  # noqa: T201
        finally:
            await run.end()
        print(table(run, found, arguments))  # noqa: T201
        return found


def table(run: Run, found: dict[str, list[Recovered]], arguments: argparse.Namespace) -> str:
    pace = run.config.synchronizer
    lines = [
        machine(),
        f"seconds, medians of {arguments.repeat}; task_lease {pace.task_lease:g}, lease_ttl {pace.lease_ttl:g}, "
        f"member_timeout {pace.member_timeout:g}",
        f"{'what':24}{'experiences':>13}{f'{STEPS_ON} steps':>10}{'slowest':>10}  decided by",
    ]
    for name, (why, _) in blows(run).items():
        experience_s = statistics.median(each.experience_s for each in found[name])
        steps = [each.steps_s for each in found[name]]
        lines.append(f"{name:24}{experience_s:13.1f}{statistics.median(steps):10.1f}{max(steps):10.1f}  {why}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--task-lease", type=float, default=15.0, help="synchronizer.task_lease, seconds")
    parser.add_argument("--member-timeout", type=float, default=10.0, help="synchronizer.member_timeout, seconds")
    parser.add_argument("--lease-ttl", type=float, default=10.0, help="synchronizer.lease_ttl, seconds")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({name: [vars(each) for each in each_of] for name, each_of in found.items()})
        )


if __name__ == "__main__":
    main()
