"""Where a past stream is read, and where a new one is written.

Invariant: the run that is read from is not changed. Its store, where no server serves it, is served from a copy; its
bus, where there is one, is joined without declaring anything.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from bus.errors import BusError
from bus.jetstream import connect
from bus.permissions import Role
from bus.port import Bus
from bus.server import LocalServer
from bus.store_lock import StoreLock
from bus.subjects import Stream, bucket_name, stream_name
from services.config.tree import RunConfig
from services.replay.errors import ReplayError
from services.runtime.bus_access import forget_address, join, known_url, leave_address, local_server, settings, store_of

log = structlog.get_logger()

_POLL_S = 0.5
_COPIED = (Stream.EXPERIENCES, Stream.BLOBS)


@dataclass(frozen=True)
class Source:
    """A run to read from. `is_served_here` where only this process keeps its stream within reach."""

    config: RunConfig
    bus: Bus
    is_served_here: bool


def as_run(config: RunConfig, name: str) -> RunConfig:
    """`config` for the run `name` (`<project>/<name>`, or a name within the project): with a directory of its own.

    Raises:
        ReplayError: the name cannot be that of a run.
    """
    project, _, last = name.rpartition("/")
    project = project or config.project
    if "/" in project or any(part.strip() in ("", ".", "..") or "\\" in part for part in (project, last)):
        raise ReplayError(f"{name!r} is no name of a run: write <project>/<name>, or <name> for project {project!r}")
    if (project, last) == (config.project, config.name):
        return config
    bus = config.bus.model_copy(update={"store_dir": None, "port": None})
    return config.model_copy(update={"project": project, "name": last, "checkpoint_job_dir": "", "bus": bus})


@asynccontextmanager
async def source_of(config: RunConfig, scratch: Path) -> AsyncIterator[Source]:
    """The run of `config`, to read from. What `scratch` is needed for is gone from it afterwards.

    Raises:
        ReplayError: the run has left nothing.
        BusRefused: another process serves the run's store for itself, or the bus does not know the run.
        BusUnavailable: nobody answers at the configured address.
    """
    url = known_url(config)
    if url is not None:
        async with _connected(config, url) as bus:
            yield Source(config, bus, is_served_here=False)
        return
    store = Path(config.bus.store_dir) if config.bus.store_dir else store_of(config.run_dir)
    if not store.is_dir():
        raise ReplayError(
            f"run {config.run_name} has left no store at {store}, and no bus.url is set: check the run's name and "
            "checkpoint_root_dir, or set bus.url to the bus that holds it"
        )
    async with _served_copy(config, store, scratch) as url, _connected(config, url) as bus:
        yield Source(config, bus, is_served_here=True)


@asynccontextmanager
async def target_of(config: RunConfig) -> AsyncIterator[Bus]:
    """The bus of a run that is to be written to, declared: the one that is there, or a server on the run's own store.

    Raises:
        BusRefused: another process serves the run's store.
        BusUnavailable: nobody answers at the configured address.
    """
    server = None
    config.run_dir.mkdir(parents=True, exist_ok=True)
    if known_url(config) is None:
        server = local_server(config)
        await server.start()
        leave_address(config.run_dir, server.url)
    try:
        bus = await join(config, "writer")
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        if server is not None:
            await server.stop()
            forget_address(config.run_dir)


@asynccontextmanager
async def _connected(config: RunConfig, url: str) -> AsyncIterator[Bus]:
    bus = await connect(url, config.run_name, name="reader", settings=settings(config, Role.READER), observes=True)
    try:
        await bus.state(Stream.EXPERIENCES)  # says which stream is missing, where the run is unknown
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def _served_copy(config: RunConfig, store: Path, scratch: Path) -> AsyncIterator[str]:
    """The address of a server on a copy of what a replay reads."""
    copy = scratch / "store"
    shutil.rmtree(copy, ignore_errors=True)
    server = LocalServer(copy, sync_interval="2m", max_payload_bytes=config.bus.max_payload_bytes)
    keeping: asyncio.Task[None] | None = None
    try:
        with StoreLock(store).shared():
            size_bytes = await asyncio.to_thread(_copy, store, copy, config.run_name)
        log.info("source_copied", run=config.run_name, store=str(store), copy=str(copy), bytes=size_bytes)
        await server.start()
        keeping = asyncio.create_task(_keep(server))
        yield server.url
    finally:
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await server.stop()
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            scratch.parent.rmdir()  # where nothing came of it


async def _keep(server: LocalServer) -> None:
    """Start the server again when it dies."""
    while True:
        await asyncio.sleep(_POLL_S)
        if not server.is_running:
            log.warning("source_restarting", url=server.url)
            with contextlib.suppress(BusError):
                await server.start()


def _copy(store: Path, copy: Path, run: str) -> int:
    """Copy the run's experiences, blobs and keys, whatever account they are in. Returns the bytes.

    Raises:
        ReplayError: the store holds no experiences of the run, or the disk has no room for a copy.
    """
    names = [*(stream_name(run, stream) for stream in _COPIED), f"KV_{bucket_name(run)}"]
    found = [path for name in names for path in store.glob(f"jetstream/*/streams/{name}")]
    if not any(path.name == names[0] for path in found):
        raise ReplayError(f"the store {store} holds no experiences of run {run}: check the run's name")
    size_bytes = sum(file.stat().st_size for path in found for file in path.rglob("*") if file.is_file())
    copy.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(copy).free
    if size_bytes > free_bytes:
        raise ReplayError(
            f"a copy of {run}'s stream takes {size_bytes} bytes, and {copy} has {free_bytes} free: serve the store "
            f"with `trinity bus --store-dir {store}` and set bus.url, and nothing is copied"
        )
    for path in found:
        shutil.copytree(path, copy / "jetstream" / "$G" / "streams" / path.name, ignore=shutil.ignore_patterns("obs"))
    return size_bytes
