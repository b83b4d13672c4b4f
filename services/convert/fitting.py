"""Whether a value is of the kind that veRL's default of its key is: a number, a whole number, or a truth value."""

from typing import Any

from services.convert.row import Row, Unfit

WORDS = {"trainer.save_freq": ("after_each_epoch",)}
"""Texts that a key takes beside its numbers."""


def fitted(row: Row, key: str, value: Any) -> Any:
    """The value; 512 for 5.12e2 where a whole number stands, and true for 1 where a truth value does.

    Raises:
        Unfit: it is of another kind, and does not come from the environment.
    """
    default = row.default
    if not isinstance(default, int | float) or value is None or value in WORDS.get(key, ()):
        return value
    if isinstance(value, str) and "${" in value:
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool):
        return _truth(value, default)
    if isinstance(default, float) and is_number:
        return value
    if is_number and value == int(value):
        return int(value)
    kind = "number" if isinstance(default, float) else "whole number"
    raise Unfit(f"it is no {kind}: veRL's default, {default}, stands in its place")


def _truth(value: Any, default: bool) -> bool:
    if value in (0, 1):
        return bool(value)
    raise Unfit(f"it is neither true nor false: veRL's default, {str(default).lower()}, stands in its place")
