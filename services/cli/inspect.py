"""Looking: `trinity check` at a configuration, `trinity status` at a run."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import ConfigOption, SetOption, loaded, loaded_whole


def check(
    file: Annotated[Path, typer.Argument(help="The YAML file to check.")],
    set_: SetOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what follows from the keys: sizes, steps, learning rates, GPUs.")
    ] = False,
) -> None:
    """Validate a configuration and print it resolved, with where each value comes from."""
    from services.config import derivation
    from services.config.availability import unavailable
    from services.config.show import render

    found = loaded_whole(file, set_)
    for number, each in enumerate(found.stages or (found,), start=1):
        if found.stages:
            typer.echo(f"# stage {number} of {len(found.stages)}: {each.config.run_name}")
        typer.echo(derivation.explain(each) if explain else render(each))
        for note in () if explain else each.notes:
            typer.echo(f"note: {note}")
        for missing in unavailable(each.config):
            typer.echo(f"note: `trinity run` would refuse this: {missing}")


def status(
    config: ConfigOption,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Follow the run until Ctrl-C.")] = False,
) -> None:
    """Show members, versions, stream depths, step, reward and staleness of a run."""
    asyncio.run(_status(loaded(config, set_).config, as_json, live))


def add_to(app: typer.Typer) -> None:
    app.command()(check)
    app.command()(status)


async def _status(config, as_json: bool, live: bool) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console

    from services.account.snapshot import snapshot
    from services.launcher.view import Rates, table, watch
    from services.runtime.bus_access import join_for_reading

    bus, server = await join_for_reading(config, "status")
    try:
        if live:
            await watch(Console(), lambda: snapshot(bus))
        found = await snapshot(bus)
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=2))
            return
        rates = Rates()
        rates.take(found)
        Console().print(table(found, rates))
    finally:
        await bus.close()
        if server is not None:
            await server.stop()
