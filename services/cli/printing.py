"""Text from the bus as it may be shown at a terminal: what a stranger has published must not drive it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 160


def one_line(text: str) -> str:
    """`text` without line breaks, control characters and escapes."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def console() -> "Console":
    """Where tables go: as wide as the terminal, and wide enough for one line a row where there is none."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
