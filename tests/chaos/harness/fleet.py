"""The processes of a run, each behind a proxy of its own, started again when they die as a process supervisor would.

Invariant: a service ends for good only by itself with status 0, by being asked to leave, or as a superseded trainer.
"""

import asyncio
import contextlib
import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from proxy import Proxy

from bus.server import LocalServer

_WATCH_S = 0.05
_RESTART_PAUSE_S = 0.3
_EXIT_SUPERSEDED = 4


class Service:
    """One service, by `trinity <kind> --name <name>`. `is_wanted` until it may stay away."""

    def __init__(self, kind: str, name: str, config_path: Path, proxy: Proxy) -> None:
        self.kind = kind
        self.name = name
        self.proxy = proxy
        self.is_wanted = True
        self.is_frozen = False
        self.statuses: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = config_path.with_suffix(".log")
        self._config_path = config_path

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        program = [sys.executable, "-m", "services.cli", self.kind]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*program, "--config", str(self._config_path), "--name", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, number: int) -> None:
        """A signal, where there is still somebody to hear it."""
        if self.process is not None and self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def end(self) -> None:
        """At once, and for good."""
        self.is_wanted = False
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def log_tail(self, lines: int = 12) -> str:
        text = self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])


class Fleet:
    """All services of one run, around one server."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.root = root
        self.config = config
        self.server = LocalServer(root / "bus" / "store")
        self.services: dict[str, Service] = {}
        self.server_busy = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.server.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for service in self.services.values():
            service.end()
            await service.proxy.stop()
        if self.server.is_running:
            os.kill(self.server.pid, signal.SIGCONT)
        await self.server.stop()

    async def add(self, kind: str, name: str) -> Service:
        """Start another service."""
        proxy = Proxy(self.server.port)
        await proxy.start()
        path = self.root / f"{name}.yaml"
        config = copy.deepcopy(self.config)
        config["bus"]["url"] = proxy.url
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.services[name] = Service(kind, name, path, proxy)
        self.services[name].spawn()
        return self.services[name]

    def alive(self, *kinds: str) -> list[Service]:
        """Those that are there and are not to leave, by name."""
        found = [each for each in self.services.values() if each.is_alive and each.is_wanted and each.kind in kinds]
        return sorted(found, key=lambda each: each.name)

    def wanted(self, *kinds: str) -> list[Service]:
        found = [each for each in self.services.values() if each.is_wanted]
        return [each for each in found if not kinds or each.kind in kinds]

    async def ended(self, patience_s: float) -> list[Service]:
        """Those that are still there after `patience_s`; empty as soon as all have ended."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and any(each.is_alive or each.is_wanted for each in self.services.values()):
            await asyncio.sleep(_WATCH_S)
        return [each for each in self.services.values() if each.is_alive or each.is_wanted]

    async def _watch(self) -> None:
        while True:
            for service in list(self.services.values()):
                if service.is_wanted and not service.is_alive:
                    await self._decide(service)
            await asyncio.sleep(_WATCH_S)

    async def _decide(self, service: Service) -> None:
        assert service.process is not None
        status = service.process.returncode
        service.statuses.append(status)
        is_succeeded = status == _EXIT_SUPERSEDED and len(self.wanted("trainer")) > 1 and service.kind == "trainer"
        if status == 0 or is_succeeded:
            service.is_wanted = False
            return
        await asyncio.sleep(_RESTART_PAUSE_S)
        service.spawn()
