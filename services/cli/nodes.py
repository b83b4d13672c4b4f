"""One service a node: `trinity explorer`, `trainer`, `evaluator`, `synchronizer`, `monitor`; and `trinity bus`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from schemas.reports import ServiceName
from services.cli.options import ConfigOption, PluginOption, SetOption, available, loaded

NameOption = Annotated[str | None, typer.Option(help="This member's name; by default one that nobody else has.")]

_HELP: dict[ServiceName, str] = {
    "explorer": "Run one explorer: one engine that answers tasks. It may join and leave at any time.",
    "trainer": "Run the trainer. Started again, it goes on from its newest checkpoint.",
    "evaluator": "Run an evaluator, which judges announced weights on the eval tasksets.",
    "synchronizer": "Run a synchronizer. The first leads and releases tasks; further ones stand by.",
    "monitor": "Run the monitor, which writes the whole record of the run for TensorBoard.",
}


def add_to(app: typer.Typer) -> None:
    for service, text in _HELP.items():
        app.command(service, help=text)(_command(service))
    app.command("bus")(bus)


def _command(service: ServiceName):  # type: ignore[no-untyped-def]  # typer reads the inner signature
    def run(
        config: ConfigOption, name: NameOption = None, set_: SetOption = None, plugin_dir: PluginOption = None
    ) -> None:
        from services.launcher.assembly import SERVICES
        from services.runtime.host import host, member_name
        from services.runtime.logs import configure_logs

        chosen = available(loaded(config, set_, plugin_dir))
        configure_logs(chosen.log.level, service)
        raise typer.Exit(asyncio.run(host(chosen, service, member_name(service, name), SERVICES[service])))

    return run


def bus(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 4222,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    store_dir: Annotated[Path, typer.Option(help="Where messages are kept.")] = Path("checkpoints/bus/store"),
    sync_interval: Annotated[
        str, typer.Option(help="When messages reach the disk: 'always', or like '10s'.")
    ] = "always",
) -> None:
    """Run a bus alone: a nats-server with JetStream, until Ctrl-C."""
    from services.runtime.logs import configure_logs

    configure_logs()
    asyncio.run(_serve(port, host, store_dir, sync_interval))


async def _serve(port: int, host: str, store_dir: Path, sync_interval: str) -> None:
    import signal

    from bus.server import LocalServer

    server = LocalServer(store_dir, port=port, host=host, sync_interval=sync_interval)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    typer.echo(f"bus at {server.url}, messages in {server.store_dir}; Ctrl-C stops it")
    while not stopping.is_set() and server.is_running:
        try:
            await asyncio.wait_for(stopping.wait(), 0.5)
        except TimeoutError:
            continue
    await server.stop()
