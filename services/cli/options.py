"""The options that several commands share, and how a configuration is read from them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from services.config.load import Loaded, load
from services.config.tree import RunConfig
from services.runtime.logs import configure_logs

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The run's YAML file.", show_default=False, exists=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Override one key: --set buffer.batch_size=16. May be repeated."),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin-dir", help="A directory of Python files with your own workflows and rewards."),
]


def loaded(path: Path, overrides: list[str] | None, plugin_dirs: list[Path] | None = None) -> Loaded:
    """The checked configuration, with logs set up as it says. Of several stages, the first that is not over."""
    found = loaded_whole(path, overrides, plugin_dirs)
    return _at_stage(found) if found.stages else found


def loaded_whole(path: Path, overrides: list[str] | None, plugin_dirs: list[Path] | None = None) -> Loaded:
    """The checked configuration with all its stages, and logs set up as it says."""
    found = load(path, overrides or ())
    configure_logs(found.config.log.level)
    if plugin_dirs:
        directories = [*found.config.plugin_dirs, *(str(directory.absolute()) for directory in plugin_dirs)]
        return _with_plugins(found, directories)
    return found


def _with_plugins(found: Loaded, directories: list[str]) -> Loaded:
    update = {"plugin_dirs": directories}
    return replace(
        found,
        config=found.config.model_copy(update=update),
        given=found.given.model_copy(update=update),
        stages=tuple(_with_plugins(stage, directories) for stage in found.stages),
    )


def _at_stage(found: Loaded) -> Loaded:
    """As if the file held only the stage that is being worked on; where all are over, the last."""
    from services.launcher.stages import current

    place = asyncio.run(current(found.stages))
    name = place.config.run_name
    typer.echo(f"note: stage {place.number} of {len(found.stages)}: {name}", err=True)
    return replace(found.stages[place.number - 1], config=place.config)


def available(found: Loaded) -> RunConfig:
    """The configuration, when everything that it asks for can be done.

    Raises:
        ConfigError: something is not available yet.
    """
    from services.config.availability import unavailable
    from services.config.errors import ConfigError, Problem

    missing = unavailable(found.config)
    if missing:
        raise ConfigError(found.source, [Problem("", line) for line in missing])
    return found.config
