"""One service as a child process: started, watched, restarted with growing pauses, and ended."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from schemas.reports import ServiceName
from services.runtime.host import EXIT_SUPERSEDED, EXIT_UNCORRECTED

log = structlog.get_logger()

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_STEADY_S = 60.0
_LONGEST_PAUSE_S = 30.0
MOST_QUICK_FAILURES = 5
_TAIL_LINES = 15
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class ChildPlan:
    """Which service to run, under which name, with which configuration, logging where.

    `most_failures` quick ones in a row, while the run makes no headway, end the run.
    """

    service: ServiceName
    name: str
    config_path: Path
    log_path: Path
    environment: dict[str, str] = field(default_factory=dict)
    most_failures: int = MOST_QUICK_FAILURES

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "services.cli"]
        return [*program, self.service, "--config", str(self.config_path), "--name", self.name]


class ChildFailed(Exception):
    """A service that failed again and again, quickly, or that said that it would."""


class Child:
    """A supervised process. It leads a process group of its own, so that its helpers end with it.

    `headway` tells how far the run is: failures between which it grew are not in a row.
    """

    def __init__(self, plan: ChildPlan, headway: Callable[[], Awaitable[int]] | None = None) -> None:
        self.plan = plan
        self._headway = headway
        self._headway_at_failure = -1
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._quick_failures = 0
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def supervise(self) -> None:
        """Run the service until it ends well or `stop` is called; start it again when it crashes.

        Raises:
            ChildFailed: it crashed several times in quick succession, or needs a correction first.
        """
        while not self._stopping:
            started = time.monotonic()
            status = await self._run()
            if status == 0 or self._stopping:
                return
            if status == EXIT_SUPERSEDED:
                log.error("service_superseded", service=self.plan.name, log=str(self.plan.log_path))
                return
            if status == EXIT_UNCORRECTED:
                raise ChildFailed(
                    f"{self.plan.name} cannot go on before this is corrected; the same command goes on then. "
                    f"The end of {self.plan.log_path}:\n{self._tail()}"
                )
            await self._count_failure(status, time.monotonic() - started)
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (self._quick_failures - 1))
            log.warning("service_restarting", service=self.plan.name, status=status, pause_s=pause_s)
            self.restarts += 1
            await asyncio.sleep(pause_s)

    async def stop(self, patience_s: float) -> None:
        """SIGTERM, and after `patience_s` SIGKILL to all that is left."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_s)
        _end_group(process.pid)

    async def _run(self) -> int:
        self.plan.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.plan.log_path.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.plan.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.plan.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent if _libc is not None else None,
            )
        log.info("service_starting", service=self.plan.name, pid=self._process.pid, log=str(self.plan.log_path))
        status = await self._process.wait()
        _end_group(self._process.pid)
        return status

    async def _count_failure(self, status: int, lasted_s: float) -> None:
        headway = await self._headway() if self._headway else 0
        is_in_a_row = lasted_s < _STEADY_S and headway <= self._headway_at_failure
        self._quick_failures = self._quick_failures + 1 if is_in_a_row else 1
        self._headway_at_failure = headway
        if self._quick_failures >= self.plan.most_failures:
            raise ChildFailed(
                f"{self.plan.name} failed {self._quick_failures} times in a row (status {status}); "
                f"the end of {self.plan.log_path}:\n{self._tail()}"
            )

    def _tail(self) -> str:
        lines = self.plan.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


def _end_group(leader: int) -> None:
    """Engines and workers that a dead service has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _die_with_parent() -> None:
    """Runs in the child before it becomes the service."""
    assert _libc is not None
    _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
