"""The lock on a store: one server at a time serves it, and whoever comes second learns who that is.

The server inherits it, and the kernel (`flock`) holds it for as long as that server lives: no crash leaves it behind.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bus.errors import BusRefused

_PATIENCE_S = 10.0
_POLL_S = 0.05


class StoreLock:
    """The lock of the store at `store_dir`; its file lies beside that directory and stays there."""

    def __init__(self, store_dir: Path) -> None:
        self._store_dir = store_dir
        self._path = store_dir.with_name(f"{store_dir.name}.lock")

    @asynccontextmanager
    async def taken(self, url: str) -> AsyncIterator[int]:
        """Take it, to start a server of the store at `url`: the descriptor is for that server to inherit.

        A server whose parent has died is on its way out, and is waited for.

        Raises:
            BusRefused: another server serves the store.
        """
        descriptor = await self._locked_alone()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"url": url, "pid": os.getpid()}).encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep servers away from the store while it is only read.

        Raises:
            BusRefused: a server serves it.
        """
        if not self._path.exists():
            yield
            return
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            if not _locked(descriptor, fcntl.LOCK_SH):
                raise self._refused()
            yield
        finally:
            os.close(descriptor)

    async def _locked_alone(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if self._holder_lives() or asyncio.get_running_loop().time() > deadline:
                os.close(descriptor)
                raise self._refused()
            await asyncio.sleep(_POLL_S)
        return descriptor

    def _holder_lives(self) -> bool:
        pid = self._holder().get("pid")
        return isinstance(pid, int) and Path(f"/proc/{pid}").exists()

    def _holder(self) -> dict[str, object]:
        try:
            held = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return held if isinstance(held, dict) else {}

    def _refused(self) -> BusRefused:
        holder = self._holder()
        return BusRefused(
            f"the store {self._store_dir} is served already, by process {holder.get('pid', 'unknown')} at "
            f"{holder.get('url', 'an unknown address')}, and two servers would destroy it: wait until that one has "
            "ended, or set bus.url to its address"
        )


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
