"""A validation error in words: the key, the value, and what to write instead."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from services.config.errors import Problem
from services.config.keys import joined
from services.config.spelling import advice_for_unknown, nearest

MAX_VALUE_CHARACTERS = 60
EXPECTED: Mapping[str, str] = {
    "int": "a whole number, such as 8",
    "float": "a number, such as 0.5",
    "bool": "true or false",
    "string": "text",
    "list": "a list: one `- ` line for each entry",
    "dict": "a section: its keys stand below it, indented",
    "model": "a section: its keys stand below it, indented",
    "finite": "a finite number",
}


def explained(details: ErrorDetails) -> Problem:
    """The problem that pydantic found, as a person would say it."""
    key = joined(details["loc"])
    kind = details["type"]
    if kind == "extra_forbidden":
        return Problem(key, f"{key} is not a known key: {advice_for_unknown(details['loc'])}")
    if kind == "missing":
        return Problem(key, f"{key} is missing: give it a value")
    return Problem(key, f"{key}={shown(details['input'])} {_fault(details)}")


def shown(value: object) -> str:
    """A value in few characters, as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[: MAX_VALUE_CHARACTERS - 3]}..."


def _fault(details: ErrorDetails) -> str:
    kind = details["type"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "literal_error":
        return _not_among(str(details["input"]), str(context["expected"]))
    if kind == "value_error":
        return str(context["error"])
    expected = EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        return f"is refused: {details['msg']}"
    return f"must be {expected}"


def _not_among(value: str, expected: str) -> str:
    names = [name.strip().strip("'") for name in expected.replace(" or ", ",").split(",")]
    meant = nearest(value, names)
    advice = f"did you mean {meant}? " if meant else ""
    return f"is not one of {', '.join(names)}: {advice or 'choose one of them'}".rstrip()
