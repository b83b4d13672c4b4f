"""The table of commands."""

import sys

import typer

from services.cli import audit, bus, checkpoints, convert, data, debug, inspect, nodes, prepare, quarantine, replay, run

app = typer.Typer(
    name="trinity",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Reinforcement fine-tuning of language models, as services that meet on a NATS JetStream bus.",
    epilog="Begin with: trinity prepare, then trinity run --config configs/quickstart.yaml",
)

for module in (run, debug, nodes, bus, inspect, audit, checkpoints, quarantine, data, replay, prepare, convert):
    module.add_to(app)


def main() -> None:
    """Run the command line. Errors that a user can mend are one readable message and status 2."""
    from bus.errors import BusError
    from services.config.errors import ConfigError
    from services.replay.errors import ReplayError
    from services.store.errors import StoreError

    try:
        app()
    except (ConfigError, ReplayError, StoreError) as error:
        sys.exit(_said(str(error)))
    except BusError as error:
        sys.exit(_said(f"bus: {error}"))


def _said(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
