"""`trinity run`: a whole run, or one side of it, on this machine."""

import asyncio

import typer

from services.cli.options import ConfigOption, PluginOption, SetOption, available, loaded


def run(config: ConfigOption, set_: SetOption = None, plugin_dir: PluginOption = None) -> None:
    """Start the services of the configuration's `mode` and show progress until the run ends.

    `both` starts all of them and, where no bus.url is set, a bus of its own. `explore` and `train` start one side and
    join a bus that `trinity bus` has started. `bench` evaluates the weights that a run has left.
    """
    from rich.console import Console

    from services.config.errors import ConfigError
    from services.launcher.launch import launch, prepared
    from services.launcher.preflight import problems

    found = loaded(config, set_, plugin_dir)
    console = Console()
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    chosen = prepared(available(found))
    found_problems = problems(chosen)
    if found_problems:
        raise ConfigError(found.source, found_problems)
    raise typer.Exit(asyncio.run(launch(chosen, console)))


def add_to(app: typer.Typer) -> None:
    app.command()(run)
