"""`trinity bus`: a nats-server of one's own, with credentials for each role of the runs that it serves."""

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import ConfigOption, SetOption, loaded

if TYPE_CHECKING:
    from bus.credentials import Keyring
    from bus.server import LocalServer
    from bus.settings import BusSettings
    from services.config.tree import RunConfig

STORE_DIR = Path("checkpoints/bus/store")

AuthOption = Annotated[
    bool, typer.Option("--auth", help="Let in only who has credentials, and make those of the named runs.")
]
ConfigsOption = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", help="With --auth: a run to serve, by its YAML file. May be repeated."),
]
RunsOption = Annotated[
    list[str] | None,
    typer.Option("--run", help="With --auth: a run to serve, as project/name. May be repeated."),
]
CredentialsOption = Annotated[
    Path | None,
    typer.Option("--credentials", help="Directory of the credentials; by default `credentials` beside the store."),
]
CertOption = Annotated[Path | None, typer.Option("--tls-cert", help="Talk TLS, with this certificate (PEM).")]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key (PEM).")]
CaOption = Annotated[
    Path | None, typer.Option("--tls-ca", help="Ask clients for a certificate that this authority has signed (PEM).")
]

commands = typer.Typer(invoke_without_command=True)


@commands.callback()
def bus(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 4222,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    store_dir: Annotated[Path, typer.Option(help="Where messages are kept.")] = STORE_DIR,
    sync_interval: Annotated[
        str, typer.Option(help="When messages reach the disk: 'always', or like '10s'.")
    ] = "always",
    auth: AuthOption = False,
    config: ConfigsOption = None,
    run: RunsOption = None,
    credentials: CredentialsOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    tls_ca: CaOption = None,
) -> None:
    """Run a bus alone: a nats-server with JetStream, until Ctrl-C. docs/security.md tells of credentials and TLS."""
    if context.invoked_subcommand is not None:
        return
    from bus.server import LocalServer
    from bus.tls import TlsFiles
    from services.runtime.logs import configure_logs

    configure_logs()
    served, keyring = _served(config, run), None
    if auth:
        keyring = _keyring(credentials or store_dir.parent / "credentials", served)
    elif served or credentials:
        raise typer.BadParameter("--config, --run and --credentials are about a bus with credentials: add --auth")
    tls = TlsFiles(tls_ca, tls_cert, tls_key) if tls_cert or tls_key or tls_ca else None
    server = LocalServer(
        store_dir,
        port=port,
        host=host,
        sync_interval=sync_interval,
        accounts_path=keyring.accounts_path if keyring else None,
        tls=tls,
    )
    asyncio.run(_serve(server, keyring, served))


@commands.command()
def credentials(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write into.", show_default=False)],
    config: ConfigsOption = None,
    run: RunsOption = None,
) -> None:
    """Make the credentials of runs, and `accounts.conf` for the configuration of a nats-server that others start.

    What is there already is kept. `accounts.conf` lists all runs that have credentials in the directory.
    """
    _keyring(out, _served(config, run))
    typer.echo(f"credentials in {out}: include {out / 'accounts.conf'} in the server's configuration")


@commands.command()
def declare(config: ConfigOption, set_: SetOption = None) -> None:
    """Make the streams of a run at its bus.url, as the admin of its credentials: for a server that others start."""
    from bus.permissions import Role
    from services.runtime.bus_access import join

    chosen = loaded(config, set_).config

    async def work() -> None:
        bus = await join(chosen, "admin", Role.ADMIN)
        await bus.close()
        typer.echo(f"run {chosen.run_name} is declared at {bus.url}")

    asyncio.run(work())


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="bus")


def _served(paths: list[Path] | None, names: list[str] | None) -> dict[str, "RunConfig | None"]:
    """The runs that are named, with their configuration where it is given."""
    named = [loaded(path, None).config for path in paths or ()]
    return {**dict.fromkeys(names or ()), **{config.run_name: config for config in named}}


def _keyring(directory: Path, served: Mapping[str, "RunConfig | None"]) -> "Keyring":
    """The credentials of these runs, and of those that were here before.

    Raises:
        BadParameter: that is no run at all, or a name that no run has.
    """
    from bus.credentials import Keyring

    keyring = Keyring(directory)
    for run in served:
        project, _, name = run.partition("/")
        if not project or not name or "/" in name:
            raise typer.BadParameter(f"{run!r} is no name of a run: write --run PROJECT/NAME")
        keyring.ensure(run)
    if not keyring.runs():
        raise typer.BadParameter(f"whom is it for? {directory} holds no credentials: name runs by --config or --run")
    keyring.write_accounts()
    return keyring


async def _serve(server: "LocalServer", keyring: "Keyring | None", served: Mapping[str, "RunConfig | None"]) -> None:
    import signal

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    try:
        if keyring is not None:
            for run, config in served.items():
                await _declare(server, keyring, run, config)
            for run in keyring.runs():
                typer.echo(f"run {run}: bus.credentials={keyring.of(run)}")
        typer.echo(f"bus at {server.url}, messages in {server.store_dir}; Ctrl-C stops it")
        while not stopping.is_set() and server.is_running:
            try:
                await asyncio.wait_for(stopping.wait(), 0.5)
            except TimeoutError:
                continue
    finally:
        await server.stop()


async def _declare(server: "LocalServer", keyring: "Keyring", run: str, config: "RunConfig | None") -> None:
    """Make the run's streams, sized as its configuration says."""
    from bus.jetstream import connect
    from bus.permissions import Role

    admin = dataclasses.replace(
        _sizes(config),
        credentials=keyring.credentials(run, Role.ADMIN),
        tls=server.tls.of_own_client() if server.tls else None,
    )
    bus = await connect(server.url, run, name="admin", settings=admin)
    try:
        await bus.declare()
    finally:
        await bus.close()


def _sizes(config: "RunConfig | None") -> "BusSettings":
    from bus.settings import BusSettings
    from services.runtime.bus_access import settings

    if config is None:
        return BusSettings()
    plain = config.bus.model_copy(update={"credentials": None, "tls_ca": None, "tls_cert": None, "tls_key": None})
    return settings(config.model_copy(update={"bus": plain}))
