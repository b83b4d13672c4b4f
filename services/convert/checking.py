"""Whether a written configuration passes `trinity check`, and what `trinity run` would still refuse."""

import tempfile
from pathlib import Path

from services.config.availability import unavailable
from services.config.errors import ConfigError
from services.config.load import load


def problems(text: str) -> tuple[list[str], list[str]]:
    """What keeps the configuration from being checked, and what is not available: sentences of each."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "converted.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            found = load(file)
        except ConfigError as error:
            return [str(each.message) for each in error.problems], []
        return [], unavailable(found.config)
