"""`trinity run`: a whole run, or one side of it, on this machine."""

import asyncio
from typing import Annotated

import typer

from services.cli.options import ConfigOption, PluginOption, SetOption, available, loaded_whole
from services.config.load import Loaded


def run(
    config: ConfigOption,
    set_: SetOption = None,
    plugin_dir: PluginOption = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from-step", help="Go back to this step's checkpoint first: later ones are superseded."),
    ] = None,
) -> None:
    """Start the services of the configuration's `mode` and show progress until the run ends.

    `both` starts all of them and, where no bus.url is set, a bus of its own. `explore` and `train` start one side and
    join a bus that `trinity bus` has started; but `train` on rows of data (sft, cpt, dpo) is whole by itself. `bench`
    evaluates the weights that a run has left. Of a configuration with `stages`, all that are not over are run in order.
    """
    from rich.console import Console

    from services.config.errors import ConfigError
    from services.launcher.launch import launch, prepared
    from services.launcher.preflight import problems
    from services.launcher.stages import launch_stages, prepared_stages

    found = loaded_whole(config, set_, plugin_dir)
    if from_step is not None:
        _assert_can_go_back(found)
    console = Console()
    runs = found.stages or (found,)
    for note in dict.fromkeys(note for each in runs for note in each.notes):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    found_problems = [problem for each in runs for problem in problems(available(each))]
    if found_problems:
        raise ConfigError(found.source, list(dict.fromkeys(found_problems)))
    if found.stages:
        raise typer.Exit(asyncio.run(launch_stages(prepared_stages(found.stages), console)))
    raise typer.Exit(asyncio.run(launch(prepared(found.config), console, from_step)))


def _assert_can_go_back(found: Loaded) -> None:
    from services.config.errors import ConfigError, Problem

    config = found.config
    why = ""
    if found.stages:
        why = "stages go on where they stopped: go back in a configuration of that stage alone"
    elif config.mode not in ("both", "train"):
        why = f"mode={config.mode} starts no trainer"
    elif not config.continue_from_checkpoint:
        why = "continue_from_checkpoint=false begins anew: set it to true"
    if why:
        raise ConfigError("--from-step", [Problem("", why)])


def add_to(app: typer.Typer) -> None:
    app.command()(run)
