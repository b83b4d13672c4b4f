"""The front door: the `trinity` command. Nothing heavy is imported before a command needs it."""

from services.cli.main import main

__all__ = ["main"]
