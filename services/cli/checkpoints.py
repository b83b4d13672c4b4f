"""`trinity checkpoints`: which there are, whether they are sound, and which may go."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import ConfigOption, SetOption, loaded

if TYPE_CHECKING:
    from services.trainer.checkpoints import Checkpoint

_BEING_WRITTEN_S = 600.0
"""What was touched more recently may be a living trainer's."""

checkpoints_app = typer.Typer(no_args_is_help=True, help="List, verify and prune the checkpoints of a run.")


@checkpoints_app.command("list")
def list_(
    config: ConfigOption,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """Show every checkpoint: its step, the trainer that made it, what is in it, and whether it is in force."""
    import json

    from rich.filesize import decimal
    from rich.table import Table

    from services.cli.printing import console

    found = _described(loaded(config, set_).config.run_dir)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    columns = ("step", "made", "incarnation", "trained", "stream below", "models", "ranks", "size", "in force")
    table = Table(*columns, box=None)
    for one in found:
        made = datetime.fromtimestamp(one["made_at"]).strftime("%Y-%m-%d %H:%M:%S")
        size, force = decimal(one["size_bytes"]), "yes" if one["in_force"] else "superseded"
        models = ", ".join([*one["models"], *(["huggingface"] if one["has_weights"] else [])])
        kept = (one["incarnation"], one["trained"], one["sequence_floor"], models, one["ranks"] or "-")
        cells = (one["step"], made, *kept, size, force)
        table.add_row(*map(str, cells))
    console().print(table)


@checkpoints_app.command()
def verify(
    config: ConfigOption,
    set_: SetOption = None,
    step: Annotated[int | None, typer.Option(help="Only this one; by default all.")] = None,
) -> None:
    """Compare every file with the size and SHA-256 that it had when it was committed. Status 1 where one differs."""
    from services.trainer.checkpoints import committed_checkpoints

    run_dir = loaded(config, set_).config.run_dir
    found = [one for one in committed_checkpoints(run_dir) if step in (None, one.step)]
    if not found:
        raise _refusal(f"no checkpoint {'' if step is None else f'global_step_{step} '}in {run_dir}")
    is_sound = True
    for one in found:
        damage = one.damage(is_thorough=True)
        is_sound = is_sound and not damage
        typer.echo(f"{one.directory.name}: {'; '.join(damage) if damage else _sound(one)}")
    raise typer.Exit(0 if is_sound else 1)


@checkpoints_app.command()
def prune(
    config: ConfigOption,
    keep: Annotated[int, typer.Option(min=1, help="How many of those in force stay, the newest.")] = 1,
    set_: SetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove old checkpoints, those of superseded trainers, and what dead trainers have left half written."""
    from services.trainer import checkpoints

    run_dir = loaded(config, set_).config.run_dir
    in_force = checkpoints.checkpoints(run_dir)
    going = [one.directory for one in (*in_force[:-keep], *checkpoints.fenced(run_dir))]
    long_ago = time.time() - _BEING_WRITTEN_S
    going += [path for path in checkpoints.leftovers(run_dir) if path.stat().st_mtime < long_ago]
    if not dry_run:
        checkpoints.remove(going)
    verb = "would be removed" if dry_run else "removed"
    for directory in going:
        typer.echo(f"{directory.name}: {verb}")
    kept = ", ".join(one.directory.name for one in in_force[-keep:]) or "none"
    typer.echo(f"{len(going)} {verb}; in force: {kept}")


def add_to(app: typer.Typer) -> None:
    app.add_typer(checkpoints_app, name="checkpoints")


def _described(run_dir) -> list[dict]:  # type: ignore[no-untyped-def, type-arg]
    from services.trainer import checkpoints

    in_force = checkpoints.checkpoints(run_dir)
    found = []
    for one in (*in_force, *checkpoints.fenced(run_dir)):
        ledger = one.ledger()
        found.append(
            {
                "step": one.step,
                "directory": str(one.directory),
                "made_at": one.directory.stat().st_mtime,
                "incarnation": ledger.incarnation,
                "trained": ledger.counts.trained,
                "sequence_floor": ledger.sequences.floor,
                "models": one.models,
                "ranks": one.ranks,
                "has_weights": one.has_weights,
                "size_bytes": sum(path.stat().st_size for path in one.directory.rglob("*") if path.is_file()),
                "in_force": one in in_force,
            }
        )
    return found


def _sound(one: "Checkpoint") -> str:
    ranks = f" of {one.ranks} rank{'s' if one.ranks > 1 else ''}" if one.ranks else ""
    models = f"{' and '.join(one.models)}{ranks}{', weights in Hugging Face format' if one.has_weights else ''}"
    return f"{len(one.manifest())} files as they were committed ({models})"


def _refusal(words: str) -> typer.Exit:
    typer.echo(f"error: {words}", err=True)
    return typer.Exit(2)
