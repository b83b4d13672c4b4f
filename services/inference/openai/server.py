"""A web server in the event loop of the service that it belongs to."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import structlog
import uvicorn
from fastapi import FastAPI

log = structlog.get_logger(__name__)

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::", "")
_BACKLOG = 2048


class PortTaken(RuntimeError):
    """Nobody can listen at the address; the message says what to change."""


class _Quiet(uvicorn.Server):
    """Signals are the service's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """Listens from `start` to `stop`. Port 0 takes a free one."""

    def __init__(self, app: FastAPI, host: str = LOOPBACK, port: int = 0, *, key: str = "") -> None:
        self._host = host
        self._port = port
        self._key = key
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_keep_alive=75
        )
        self._server = _Quiet(config)
        self._running: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def url(self) -> str:
        """The address for clients: of a server that listens everywhere, that of this machine in its network."""
        host = own_address() if self._host in _EVERYWHERE else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        if self._socket is None:
            raise RuntimeError("the server has not been started")
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Returns when clients can connect.

        Raises:
            PortTaken: the address is another's, or not this machine's.
        """
        self._socket = _listening(self._host, self._port, self._key)
        self._running = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._running.done():
                self._running.result()
                raise RuntimeError("the web server ended as it began")
            await asyncio.sleep(0.005)

    async def stop(self, patience_s: float = 5.0) -> None:
        """No more connections; those that are open have `patience_s` to end."""
        if self._running is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._running], timeout=patience_s)
        if not done:
            self._server.force_exit = True
            await self._running
        self._running = None


def own_address() -> str:
    """This machine's address in its network; the loopback where it is in none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


def _listening(host: str, port: int, key: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        change = f": set {key} to another" if key else ""
        raise PortTaken(f"cannot listen at {host}:{port} ({error.strerror}){change}") from error
    listening.setblocking(False)
    return listening
