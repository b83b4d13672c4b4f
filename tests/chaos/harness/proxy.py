"""A TCP proxy between a service and the bus. A partition forwards nothing and closes nothing; a cut closes everything.

Invariant: bytes are delayed or refused, never altered, dropped within a connection, or reordered.
"""

import asyncio
import contextlib

_BLOCK_BYTES = 1 << 16


class Proxy:
    """Listens on a port of its own and forwards to `target_port` on this machine."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._healed = asyncio.Event()
        self._healed.set()
        self._refuses = False
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None, "the proxy is not started"
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._close_all()

    def partition(self) -> None:
        """Stop forwarding. Connections stay open, and new ones are accepted and hear nothing."""
        self._healed.clear()

    async def cut(self) -> None:
        """Close all connections, and refuse new ones until healed."""
        self._refuses = True
        await self._close_all()

    def heal(self) -> None:
        """Forward again, beginning with what was held back."""
        self._refuses = False
        self._healed.set()

    async def _close_all(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._refuses:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or we were told to close
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._healed.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = [asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            back.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await source.read(_BLOCK_BYTES):
                await self._healed.wait()
                sink.write(block)
                await sink.drain()
