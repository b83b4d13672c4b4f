"""Where the bus of a run is, and how it is joined."""

import json
import os
from pathlib import Path

from bus.credentials import Credentials, find_credentials
from bus.errors import BusUnavailable
from bus.jetstream import connect
from bus.permissions import Role
from bus.port import Bus, LeaseTerms
from bus.server import LocalServer
from bus.settings import BusSettings
from bus.tls import TlsFiles
from services.config.tree import RunConfig
from services.runtime.durable import write_file

DEFAULT_URL = "nats://127.0.0.1:4222"
ADDRESS_FILE = "bus.json"


def settings(config: RunConfig, role: Role = Role.OPERATOR, run: str | None = None) -> BusSettings:
    """The bus settings of a run, to join it, or another `run` on the same bus, as `role`.

    Raises:
        BusRefused: there are no credentials for that role, or the files of TLS cannot be used.
    """
    return BusSettings(
        dedupe_window_s=config.bus.dedupe_window,
        max_experience_bytes=config.bus.max_experience_bytes,
        max_payload_bytes=config.bus.max_payload_bytes,
        spill_bytes=config.bus.spill_bytes,
        connect_timeout_s=config.bus.connect_timeout,
        terms=LeaseTerms(
            lease_s=config.synchronizer.task_lease,
            max_deliver=config.synchronizer.max_deliver,
        ),
        replicas=config.bus.replicas,
        credentials=_credentials(config, role, run or config.run_name),
        tls=_tls(config),
    )


def _credentials(config: RunConfig, role: Role, run: str) -> Credentials | None:
    """Those of `role`, or of one that may stand for it on a machine that has no others."""
    if config.bus.credentials is None:
        return None
    stands_in = {
        Role.OPERATOR: Role.EXPLORER if config.mode in ("explore", "serve") else Role.READER,
        Role.READER: Role.OPERATOR,
    }
    roles = [role, stands_in[role]] if role in stands_in else [role]
    return find_credentials(Path(config.bus.credentials), run, roles)


def _tls(config: RunConfig) -> TlsFiles | None:
    ca, cert, key = (
        Path(name) if name else None for name in (config.bus.tls_ca, config.bus.tls_cert, config.bus.tls_key)
    )
    return TlsFiles(ca, cert, key) if ca or cert or key else None


def known_url(config: RunConfig) -> str | None:
    """The address of a bus that is there already: as configured, or as a launcher of this run has left it."""
    return config.bus.url or _left_by_launcher(config.run_dir)


async def join(config: RunConfig, name: str, role: Role = Role.OPERATOR, observes: bool = False) -> Bus:
    """The run's bus, declared; with credentials, those of `role`. One that only `observes` quarantines nothing by
    reading.

    Raises:
        BusUnavailable: nobody answers at the configured address, nor at the default one.
        BusRefused: it does not accept the credentials, or nobody has declared the run there.
    """
    url = known_url(config) or DEFAULT_URL
    bus = await connect(url, config.run_name, name=name, settings=settings(config, role), observes=observes)
    try:
        await bus.declare()
    except BaseException:
        await bus.close()
        raise
    return bus


def local_server(config: RunConfig) -> LocalServer:
    """A server of our own, with its store under the run's directory unless the configuration says otherwise."""
    store = Path(config.bus.store_dir) if config.bus.store_dir else config.run_dir / "bus" / "store"
    return LocalServer(
        store,
        port=config.bus.port,
        sync_interval=config.bus.sync_interval,
        max_payload_bytes=config.bus.max_payload_bytes,
    )


def leave_address(run_dir: Path, url: str) -> None:
    """Tell other commands on this machine where the run's local bus is."""
    write_file(run_dir / ADDRESS_FILE, json.dumps({"url": url, "pid": os.getpid()}))


def forget_address(run_dir: Path) -> None:
    (run_dir / ADDRESS_FILE).unlink(missing_ok=True)


def store_of(run_dir: Path) -> Path:
    """The store that a local bus of this run has left."""
    return run_dir / "bus" / "store"


def _left_by_launcher(run_dir: Path) -> str | None:
    try:
        left = json.loads((run_dir / ADDRESS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(left["url"]) if _is_alive(int(left["pid"])) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def join_for_reading(config: RunConfig, name: str, role: Role = Role.READER) -> tuple[Bus, LocalServer | None]:
    """The run's bus, to look at a run that may be over: a store left behind is served again meanwhile.

    Raises:
        BusUnavailable: there is neither a bus nor a store.
        BusRefused: the bus does not accept the credentials of `role`.
    """
    if known_url(config) is None and store_of(config.run_dir).is_dir():
        server = local_server(config)
        await server.start()
        bus = await connect(server.url, config.run_name, name=name, settings=settings(config), observes=True)
        return bus, server
    if known_url(config) is None and not config.run_dir.is_dir():
        raise BusUnavailable(
            f"run {config.run_name} has left nothing at {config.run_dir}, and no bus.url is set: start it with "
            "`trinity run`, or set bus.url"
        )
    return await join(config, name, role, observes=True), None
