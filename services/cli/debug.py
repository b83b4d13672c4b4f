"""`trinity debug`: an engine that stays warm, and one task of a workflow on it."""

import asyncio
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import ConfigOption, SetOption, available, loaded
from services.config.tree import RunConfig

if TYPE_CHECKING:
    from rich.console import Console

    from schemas.tasks import TaskReleased
    from services.debug.trial import Trial
    from services.rollout.workflow import AnyWorkflow

MODULES = ("inference_model", "workflow")


def debug(
    config: ConfigOption,
    module: Annotated[str, typer.Option("--module", "-m", help="inference_model or workflow.", show_default=False)],
    output_file: Annotated[
        Path | None,
        typer.Option("--output-file", "--output_file", help="Where to write the experiences: .jsonl or .html."),
    ] = None,
    output_dir: Annotated[
        Path,
        typer.Option("--output-dir", "--output_dir", "-o", help="Without --output-file: where to write both."),
    ] = Path("debug_output"),
    disable_overwrite: Annotated[
        bool,
        typer.Option("--disable-overwrite", "--disable_overwrite", help="Keep an output directory that is there."),
    ] = False,
    plugin_dir: Annotated[
        list[Path] | None,
        typer.Option("--plugin-dir", "--plugin_dir", help="A directory with your own workflows and rewards."),
    ] = None,
    row: Annotated[int, typer.Option("--row", help="Which row of the first taskset is the task.")] = 0,
    set_: SetOption = None,
) -> None:
    """Try a workflow by itself, without trainer and bus.

    `--module inference_model` starts the rollout engine (and auxiliary models), and keeps it warm behind an
    OpenAI-compatible address until Ctrl-C. `--module workflow` runs one task of the configuration's taskset on it, or
    on an engine of its own where none is warm, and shows the experiences.
    """
    if module not in MODULES:
        also = "; `trinity view` shows the experiences of a run" if module == "viewer" else ""
        raise typer.BadParameter(f"{module!r} is neither {' nor '.join(MODULES)}{also}", param_hint="--module")
    chosen = available(loaded(config, set_, plugin_dir))
    if module == "inference_model":
        raise typer.Exit(_keep_warm(chosen))
    files = [output_file] if output_file else _files(output_dir, disable_overwrite)
    raise typer.Exit(_try(chosen, str(config), row, files))


def add_to(app: typer.Typer) -> None:
    app.command()(debug)


def _keep_warm(config: RunConfig) -> int:
    from rich.console import Console

    from services.debug.warm import keep_warm
    from services.inference.engine import EngineDied
    from services.inference.openai.server import PortTaken

    try:
        asyncio.run(keep_warm(config, Console()))
    except (EngineDied, PortTaken) as error:
        return _said(str(error))
    return 0


def _try(config: RunConfig, source: str, row: int, files: list[Path]) -> int:
    from rich.console import Console

    from services.config.errors import ConfigError, Problem
    from services.debug.report import show, write
    from services.debug.trial import chosen_task
    from services.inference.engine import EngineDied
    from services.rollout.errors import RolloutError, TaskFailed

    console = Console()
    try:
        task, workflow = chosen_task(config, row)
    except RolloutError as error:
        raise ConfigError(source, [Problem("", str(error))]) from error
    try:
        trial = asyncio.run(_tried(config, task, workflow, console))
    except TaskFailed as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return _said(str(error))
    except EngineDied as error:
        return _said(str(error))
    show(trial, console)
    for file in files:
        write(trial, file)
        console.print(f"written: {file}", highlight=False, soft_wrap=True)
    return 0


async def _tried(config: RunConfig, task: "TaskReleased", workflow: "AnyWorkflow", console: "Console") -> "Trial":
    from services.debug.trial import tried
    from services.debug.warm import engines

    async with engines(config, console) as (engine, auxiliary):
        return await tried(config, task, workflow, engine, auxiliary)


def _files(directory: Path, keeps: bool) -> list[Path]:
    if keeps and directory.exists():
        directory = directory.with_name(f"{directory.name}_{time.strftime('%Y%m%d%H%M%S')}")
    return [directory / "experiences.jsonl", directory / "experiences.html"]


def _said(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1
