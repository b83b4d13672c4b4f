"""The memory of every service while the trainer stands still: a stalled hour, scaled down.

A run with a fake engine and backend; once it trains, its trainer is stopped by a signal, and the explorers sample on
until the experience stream is full. From then on no process should grow; a straight line through that time says by how
much it would in an hour.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from roles import machine

from bus.port import Bus
from bus.subjects import Stream
from schemas.state import MemberSeen
from services.config.load import load
from services.config.tree import RunConfig
from services.runtime.bus_access import join, known_url
from services.runtime.keys import MEMBERS

STREAM_MIB, TASKS = 16, 100_000
FULL = 0.97
HOUR_S = 3600.0


def configuration(root: Path, explorers: int) -> Path:
    """A run whose explorers could go on for ever, and whose experience stream is full within a minute or so."""
    taskset = root / "sums.jsonl"
    taskset.write_text("".join(f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(64)), encoding="utf-8")
    config: dict[str, Any] = {
        "mode": "both",
        "project": "bench",
        "name": "stall",
        "checkpoint_root_dir": str(root / "checkpoints"),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"},
        "model": {"model_path": "none", "max_prompt_tokens": 64, "max_response_tokens": 512},
        "buffer": {
            "batch_size": 16,
            "total_steps": TASKS // 16,
            "explorer_input": {
                "taskset": {
                    "name": "sums",
                    "path": str(taskset),
                    "default_workflow_type": "exact_match_workflow",
                    "format": {"prompt_type": "plaintext", "prompt_key": "prompt", "response_key": "answer"},
                }
            },
        },
        "explorer": {
            "rollout_model": {
                "engine_type": "fake",
                "engine_num": explorers,
                "extra_engine_args": {"delay_s_per_token": 0.0005},
            }
        },
        "synchronizer": {"sync_style": "dynamic_by_explorer", "max_staleness": 100_000},
        "trainer": {"trainer_type": "fake", "save_interval": 0},
        "bus": {"max_experience_bytes": STREAM_MIB * 2**20},
    }
    path = root / "stall.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@dataclass
class Memory:
    """Resident MiB of one process over time."""

    service: str
    process: psutil.Process
    at_s: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def look(self, now: float) -> None:
        self.at_s.append(now)
        self.mib.append(self.process.memory_info().rss / 2**20)

    def growth_mib_an_hour(self, since_s: float) -> float:
        """By a straight line through what was seen since then."""
        seen = [(at, mib) for at, mib in zip(self.at_s, self.mib, strict=True) if at >= since_s]
        at, mib = np.array([each[0] for each in seen]), np.array([each[1] for each in seen])
        return float(np.polyfit(at, mib, 1)[0]) * HOUR_S


async def services(bus: Bus, server_url: str) -> list[Memory]:
    """Every process of the run that says heartbeats, and the server."""
    members = [entry.message for entry in await bus.entries(MEMBERS)]
    found = [Memory(seen.member, psutil.Process(seen.pid)) for seen in members if isinstance(seen, MemberSeen)]
    port = int(server_url.rpartition(":")[2])
    for process in psutil.process_iter(["name"]):
        listens = process.info["name"] == "nats-server" and any(
            connection.laddr.port == port
            for connection in process.net_connections("tcp")
            if connection.status == "LISTEN"
        )
        if listens:
            found.append(Memory("nats-server", process))
    return sorted(found, key=lambda each: each.service)


async def stalled(config: RunConfig, seconds: float) -> tuple[list[Memory], float, float]:
    """Stop the trainer and watch. The processes, and the seconds when the stream was full and when watching ended."""
    while known_url(config) is None:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.1)
    bus = await join(config, "bench")
    while len(await services(bus, bus.url)) < 5 or (await bus.state(Stream.EXPERIENCES)).last < 8:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    memories = await services(bus, bus.url)
    (trainer,) = [each for each in memories if each.service.startswith("trainer")]
    os.kill(trainer.process.pid, signal.SIGSTOP)
    began, full_at = time.monotonic(), None
    while full_at is None or time.monotonic() - began - full_at < seconds:
        now = time.monotonic() - began
        for memory in memories:
            memory.look(now)
        state = await bus.state(Stream.EXPERIENCES)
        if full_at is None and state.limit_bytes and state.size_bytes > FULL * state.limit_bytes:
            full_at = now
            print(f"the stream of {STREAM_MIB} MiB is full after {now:.0f} s, with {state.messages} groups")  # noqa: T201
        await asyncio.sleep(1.0)
    os.kill(trainer.process.pid, signal.SIGCONT)
    stood = (await bus.state(Stream.EXPERIENCES)).last
    await bus.close()
    print(f"{stood} groups were stored in all")  # noqa: T201
    return memories, full_at, time.monotonic() - began


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 10 s of the full stream")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long to watch once the stream is full")
    parser.add_argument("--explorers", type=int, default=2)
    options = parser.parse_args()
    print(machine())  # noqa: T201
    with tempfile.TemporaryDirectory() as root:
        path = configuration(Path(root), options.explorers)
        log = Path(root) / "run.log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "services.cli", "run", "--config", str(path)]
            run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # noqa: ASYNC220
        try:
            watching = stalled(load(path).config, 10.0 if options.quick else options.seconds)
            memories, full_at, ended_at = await watching
        finally:
            run.terminate()
            await asyncio.to_thread(run.wait)
        logs = "".join(path.read_text(encoding="utf-8", errors="replace") for path in Path(root).rglob("*.log"))
        waited = logs.count("publish_waiting")
    print(f"watched for {ended_at - full_at:.0f} s of the full stream; publishers said {waited} times that they wait\n")  # noqa: T201
    print(f"{'resident MiB':40}{'start':>8}{'peak':>8}{'end':>8}{'growth an hour':>16}")  # noqa: T201
    for each in memories:
        growth = each.growth_mib_an_hour(full_at)
        print(f"{each.service:40}{each.mib[0]:8.1f}{max(each.mib):8.1f}{each.mib[-1]:8.1f}{growth:+16.1f}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
