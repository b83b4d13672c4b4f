"""Which of a launcher's explorers this one is, for ports and files that each has to itself."""

import re

from services.config.tree import RunConfig


def engine_number(config: RunConfig, member: str) -> int:
    """From 0. One that was started alone, under another name, is the first."""
    found = re.fullmatch(rf"{re.escape(config.explorer.name)}_(\d+)", member)
    return int(found.group(1)) if found else 0


def engine_name(config: RunConfig, member: str) -> str:
    """`explorer.name`, with the number of all but the first."""
    number = engine_number(config, member)
    return f"{config.explorer.name}_{number}" if number else config.explorer.name
