"""One service a node: `trinity explorer`, `trainer`, `evaluator`, `synchronizer`, `monitor`."""

import asyncio
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
    "monitor": "Run the monitor, which writes the whole record of the run: TensorBoard, wandb or mlflow.",
}


def add_to(app: typer.Typer) -> None:
    for service, text in _HELP.items():
        app.command(service, help=text)(_command(service))


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
