"""Processes that play the parts of a benchmark, and the machine that it ran on."""

import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


def machine() -> str:
    """The processor, its cores and how busy they were before."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{model}, {os.cpu_count()} cores, load average {load}, Python {platform.python_version()}"


class Role:
    """A process that prepares, says it is ready, starts when told, and says what it measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def begin(cls, script: str, name: str, **arguments: object) -> "Role":
        """Start `script` in the role `name`; returns when it is ready."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            "--role",
            json.dumps({"role": name, **arguments}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        role = cls(process)
        await role._said()
        return role

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")

    async def result(self) -> dict[str, Any]:
        """What the role measured, once it has ended."""
        said = await self._said()
        await self._process.wait()
        return said

    async def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a role ended with status {await self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said


def say(**words: object) -> None:
    """From a role to those who started it."""
    print(json.dumps(words), flush=True)  # noqa: T201


async def told() -> dict[str, Any]:
    """The next words of those who started this role."""
    line = await asyncio.to_thread(sys.stdin.readline)
    words: dict[str, Any] = json.loads(line)
    return words


def play(roles: dict[str, Callable[..., Awaitable[None]]], arguments: str) -> None:
    """Play the role that `arguments` name."""
    chosen = json.loads(arguments)
    role = roles[chosen.pop("role")]

    async def run() -> None:
        await role(**chosen)

    asyncio.run(run())
