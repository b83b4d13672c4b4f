"""Runs Python that nobody has read, in processes that cannot hang, fill or reach beyond the machine.

A supervisor of our own (`sandbox_supervisor`) starts the program under limits, in namespaces of its own where the
kernel lets it, and ends it with all that it started. What is beyond its own directory it may read, and not change.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import structlog

log = structlog.get_logger(__name__)

_SUPERVISOR = Path(__file__).with_name("sandbox_supervisor.py")
_GRACE_S = 10.0
_OUTPUT_BYTES = 1 << 20

Ended = Literal["exit", "signal", "time", "memory", "disk", "lost"]


class SandboxUnavailable(RuntimeError):
    """This machine cannot hold a program to one process, so none is run."""


@dataclass(frozen=True)
class Limits:
    """What one program may take: it is one process with one thread. `timeout_s` is both wall-clock and CPU time."""

    timeout_s: float = 10.0
    memory_mib: int = 512
    disk_mib: int = 64
    files: int = 1000


@dataclass(frozen=True)
class Ran:
    """How a program ended. `status` is its exit status, or the signal that ended it; output beyond 1 MiB is cut."""

    ended: Ended
    status: int
    stdout: str
    stderr: str

    @property
    def is_well(self) -> bool:
        return self.ended == "exit" and self.status == 0


def run_python(program: str, stdin: str = "", limits: Limits | None = None) -> Ran:
    """Run `program` to its end, or to its limits. Blocks for at most `timeout_s` and a little more.

    Raises:
        SandboxUnavailable: the kernel, or the container that we are in, has no seccomp filters.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="trinity-code-", ignore_cleanup_errors=True) as name:
        outer = Path(name)
        outer.chmod(0o711)
        inner = outer / "work"
        inner.mkdir()
        (outer / "program.py").write_text(program, encoding="utf-8", errors="replace")
        (outer / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        ended, status = _supervised(outer, limits)
        return Ran(ended, status, _read(outer / "stdout"), _read(outer / "stderr"))


def _supervised(directory: Path, limits: Limits) -> tuple[Ended, int]:
    arguments = json.dumps({"directory": str(directory), **asdict(limits)})
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(_SUPERVISOR), arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        cwd=directory,
        start_new_session=True,
    )
    try:
        told, _ = supervisor.communicate(timeout=limits.timeout_s + _GRACE_S)
        found = json.loads(told)
    except (subprocess.TimeoutExpired, ValueError):
        return "lost", -1
    finally:
        _end(supervisor)
    if found["ended"] == "refused":
        raise SandboxUnavailable("programs are not run here: this machine has no seccomp filters for them")
    _tell(tuple(found["left_out"]))
    return found["ended"], int(found["status"])


@functools.cache
def _tell(left_out: tuple[str, ...]) -> None:
    """Once a process: what protection this machine's kernel, or the container that we are in, does not give."""
    if left_out:
        log.warning("sandbox_is_weaker_here", left_out=left_out, still="time, memory, disk and processes are limited")


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(supervisor.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended, with all of its group
    supervisor.wait()


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_OUTPUT_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
