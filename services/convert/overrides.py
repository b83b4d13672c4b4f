"""Hydra's overrides, `key=value`, `+key=value`, `++key=value`, `~key`: the grammar of the right side."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_OVERRIDE = re.compile(r"(\+\+?|~)?([A-Za-z_][\w./@:-]*)(?:=(.*))?", re.DOTALL)
_BARE = re.compile(r"(?:\$\{[^}]*\}|[^,\[\]{}])*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": "None"}


@dataclass(frozen=True)
class Override:
    """One argument of a launch. `sign` is "", "+", "++" or "~"; a removed key has the value None."""

    key: str
    value: Any
    text: str
    sign: str = ""


def override(argument: str) -> Override | None:
    """An argument as an override; None for what is none, such as an option.

    Raises:
        ValueError: its value cannot be read.
    """
    match = _OVERRIDE.fullmatch(argument.strip())
    if match is None or (match[3] is None and match[1] != "~"):
        return None
    return Override(match[2], value_of(match[3] or ""), match[3] or "", match[1] or "")


def value_of(text: str) -> Any:
    """The value that a text stands for: a number, a truth value, null, a list, a mapping, or text.

    Raises:
        ValueError: a bracket or a quote is never closed.
    """
    reading = _Reading(text.strip())
    if text.strip()[:1] not in ("[", "{", "'", '"'):
        return scalar(text.strip())
    found = reading.value()
    if isinstance(found, str) and found[:1] in ("[", "{"):
        with suppress(ValueError):
            return value_of(found)
    return found if reading.is_over else text.strip()


def scalar(text: str) -> Any:
    """A text without brackets: `1e-6` is a number, `True` a truth value, `null` None."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()] if text.lower() != "none" else text
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


class _Reading:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def is_over(self) -> bool:
        self._blanks()
        return self.at >= len(self.text)

    def value(self) -> Any:
        self._blanks()
        here = self.text[self.at : self.at + 1]
        if here == "[":
            return self._entries("]")
        if here == "{":
            return dict(self._entries("}"))
        if here in ("'", '"'):
            return self._quoted(here)
        match = _BARE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return scalar(match.group().strip())

    def _entries(self, end: str) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while True:
            self._blanks()
            here = self.text[self.at : self.at + 1]
            if here == end:
                self.at += 1
                return found
            if here == "":
                raise ValueError(f"{self.text!r} is never closed: {end} is missing")
            if here == ",":
                self.at += 1
                continue
            found.append(self._pair() if end == "}" else self.value())

    def _pair(self) -> tuple[str, Any]:
        match = re.compile(r"\s*['\"]?([^:'\"]+)['\"]?\s*:").match(self.text, self.at)
        if match is None:
            raise ValueError(f"{self.text!r} is no mapping: `key: value` is expected")
        self.at = match.end()
        return match[1].strip(), self.value()

    def _quoted(self, quote: str) -> str:
        end = re.compile(rf"(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL).match(self.text, self.at + 1)
        if end is None:
            raise ValueError(f"{self.text!r} is never closed: {quote} is missing")
        self.at = end.end()
        # a backslash is a sign before a quote alone
        return re.sub(rf"(\\+)({quote}|$)", lambda run: "\\" * (len(run[1]) // 2) + run[2], end.group()[:-1])

    def _blanks(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
