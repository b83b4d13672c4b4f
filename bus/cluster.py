"""A cluster of servers on this machine, each with a store of its own: to try what a cluster does, not to gain from it.

All share one disk and one kernel. A cluster that is to survive a machine has its nodes on several (docker/cluster).
"""

import asyncio
from pathlib import Path

from bus.server import ClusterNode, LocalServer, free_port


class LocalCluster:
    """Servers that know each other, under `root`. Options are those of a `LocalServer`."""

    def __init__(self, root: Path | str, size: int = 3, name: str = "trinity", **options: object) -> None:
        host = "127.0.0.1"
        ports = _different_ports(host, size)
        routes = tuple(f"nats://{host}:{port}" for port in ports)
        self.nodes = [
            LocalServer(
                Path(root) / f"{name}-{number}" / "store",
                host=host,
                node=ClusterNode(name, f"{name}-{number}", port, routes, host),
                **options,  # type: ignore[arg-type]  # they are LocalServer's to check
            )
            for number, port in enumerate(ports)
        ]

    @property
    def url(self) -> str:
        """The addresses of all nodes, for a client to choose from."""
        return ",".join(node.url for node in self.nodes)

    def node(self, name: str) -> LocalServer:
        """The server that has this name in the cluster."""
        return next(server for server in self.nodes if server.node is not None and server.node.name == name)

    async def start(self) -> None:
        """Start all nodes that do not run. Streams can be made as soon as they have chosen a leader."""
        for node in self.nodes:  # one after the other: each takes free ports
            await node.start()

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))


def _different_ports(host: str, number: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < number:
        port = free_port(host)
        if port not in ports:
            ports.append(port)
    return ports
