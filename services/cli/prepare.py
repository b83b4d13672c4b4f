"""`trinity prepare`: the model and the data of the quickstart."""

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    into: Annotated[Path, typer.Option(help="Where to put them.")] = Path(".cache/quickstart"),
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny random model instead, for tests.")] = False,
) -> None:
    """Make the quickstart's model and data from installed packages, once."""
    from services.prepare.quickstart import prepare as prepare_quickstart
    from services.prepare.tiny import prepare_tiny
    from services.runtime.logs import configure_logs

    configure_logs()
    (prepare_tiny if tiny else prepare_quickstart)(into)


def add_to(app: typer.Typer) -> None:
    app.command()(prepare)
