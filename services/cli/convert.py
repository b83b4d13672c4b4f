"""`trinity convert`: configurations and checkpoints, brought over from other frameworks and back."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from services.cli import convert_checkpoint
from services.cli.options import SetOption

convert_app = typer.Typer(no_args_is_help=True, help="Convert configurations and checkpoints from and to veRL.")

OutOption = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; by default it is printed.")]


@convert_app.command(context_settings={"ignore_unknown_options": True})
def verl(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE [-- ARGUMENTS]",
            help="A script or a YAML file of veRL's, with its own arguments behind --; or -- and a command line.",
            show_default=False,
        ),
    ] = None,
    output: OutOption = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="A variable for the script: NNODES=2. May be repeated.")
    ] = None,
    launch: Annotated[int, typer.Option("--launch", help="Which of the script's starts of veRL, from 1.")] = 1,
    said_only: Annotated[
        bool, typer.Option("--said-only", help="Leave out veRL's defaults where they differ from ours.")
    ] = False,
    on_policy: Annotated[
        bool,
        typer.Option("--on-policy", help="sync_offset: 0: sample each batch with the newest weights, as veRL does."),
    ] = False,
) -> None:
    """Write the configuration that trains as a launch of veRL does, each line with the key that it comes from.

    What has no counterpart, and what behaves in another way, is told on stderr and at the end of the file. Nothing of
    the script is run.
    """
    from services.convert.checking import problems
    from services.convert.conversion import converted
    from services.convert.errors import ConversionError
    from services.convert.said import variables
    from services.convert.writing import told, written

    try:
        read = _read(source or [], _variables(env or []), launch)
    except ConversionError as error:
        raise _refusal(str(error)) from None
    found = converted(read.said, said_only=said_only, on_policy=on_policy)
    text = written(found, [f"From {read.name}, by trinity convert verl."])
    remarks = [*read.remarks, *read.said.remarks]
    remarks += [f"{name} comes from the environment" for name in variables(read.said.sayings.values())]
    for title, sentences in (*told(found), ("How it was read:", remarks)):
        _say(title, sentences)
    refused, unavailable = problems(text)
    _say("`trinity check` refuses this configuration:", refused)
    _say("`trinity run` would refuse this:", unavailable)
    _put(text, output, not refused)


@convert_app.command("to-verl")
def to_verl(
    config: Annotated[Path, typer.Argument(help="A configuration of this project.")],
    output: OutOption = None,
    set_: SetOption = None,
) -> None:
    """Write the launch of veRL that trains as a configuration does, and tell what veRL has no counterpart for."""
    from services.config.load import load
    from services.convert.back import taken_back

    loaded = load(config, set_ or ())
    loaded = loaded.stages[0] if loaded.stages else loaded
    found = taken_back(loaded)
    _say("veRL has no counterpart for:", [f"{key}: {reason}" for key, reason in found.left])
    head = f"# From {config}, by trinity convert to-verl.\n"
    tail = "".join(f"# without a counterpart: {key}: {reason}\n" for key, reason in found.left)
    _put(f"{head}{found.command()}\n{tail}", output, True)


def add_to(app: typer.Typer) -> None:
    convert_checkpoint.add_to(convert_app)
    app.add_typer(convert_app, name="convert")


def _read(words: Sequence[str], environment: dict[str, str], number: int):  # type: ignore[no-untyped-def]
    """The launch: of a file where the first word names one, else of the words as a command line."""
    from services.convert.errors import ConversionError
    from services.convert.sources import from_arguments, from_file

    if not words:
        raise ConversionError("nothing to convert: give a script, a YAML file, or -- and a command line")
    first = Path(words[0])
    is_file = first.suffix in (".sh", ".bash", ".yaml", ".yml", ".txt") or first.is_file()
    if is_file and "=" not in words[0]:
        return from_file(first, words[1:], environment, number)
    if len(words) == 1 and "=" not in words[0]:
        raise ConversionError(f"{first}: there is no such file: give a script, a YAML file, or -- and a command line")
    return from_arguments(words, environment)


def _variables(given: Sequence[str]) -> dict[str, str]:
    from services.convert.errors import ConversionError

    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise ConversionError(f"--env {each}: write NAME=VALUE")
        found[name] = value
    return found


def _say(title: str, sentences: Sequence[str]) -> None:
    if sentences:
        typer.echo("\n".join((title, *(f"  - {each}" for each in sentences))), err=True)


def _put(text: str, output: Path | None, is_sound: bool) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refusal(
            f"{output} cannot be written: {error.strerror}: name a file in a directory that is there"
        ) from None
    typer.echo(f"{output} is written{'' if is_sound else ', and has to be completed before it runs'}", err=True)


def _refusal(words: str) -> typer.Exit:
    typer.echo(f"error: {words}", err=True)
    return typer.Exit(2)
