"""What a launch of veRL says: its keys with their values, and veRL's defaults behind them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.convert.fitting import fitted
from services.convert.overrides import override
from services.convert.row import NOTHING, Unfit
from services.convert.shell.state import ENVIRONMENT, MISSING, UNKNOWN
from services.convert.table import row_of

MAX_SHOWN = 90
COLUMNS = (("data.image_key", "images"), ("data.video_key", "videos"))
_LONE = re.compile(r"\$\{oc\.env:(\w+)\}")


@dataclass(frozen=True)
class Saying:
    """One key and its value; `told` is how the source has it, `key=value`."""

    key: str
    value: Any
    told: str


@dataclass(frozen=True)
class Said:
    """The sayings of a launch of one kind, by their keys. A null says nothing.

    `unread` are arguments whose value could not be read, with the reason; `remarks` what else there is to know.
    """

    kind: str
    sayings: Mapping[str, Saying]
    unread: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()

    def value(self, key: str, default: Any = None) -> Any:
        if key in self.sayings:
            return self.sayings[key].value
        row = row_of(key, self.kind)
        return default if row is None or row.default is NOTHING else row.default

    def is_said(self, key: str) -> bool:
        return key in self.sayings

    def count(self, key: str) -> int:
        value = self.value(key)
        return len(value) if isinstance(value, list) else 0 if value is None else 1


def said_by(kind: str, arguments: Iterable[str], before: Mapping[str, Any] | None = None) -> Said:
    """What arguments of the form `key=value` say, over the tree `before` of a configuration file."""
    sayings = {each.key: each for each in told_by_tree(before or {})}
    unread: list[tuple[str, str]] = []
    remarks: list[str] = []
    for argument in arguments:
        if lacking := MISSING.findall(argument):
            argument = MISSING.sub(r"$\1", argument).replace(UNKNOWN, "$(...)")
            unread.append((argument, f"it needs an argument behind --: the script's ${lacking[0]} is not given"))
            continue
        clean = _without_unknown(argument, remarks)
        if clean is None:
            unread.append((argument.replace(UNKNOWN, "$(...)"), "its value is known only when the script runs"))
            continue
        try:
            found = override(clean)
        except ValueError as error:
            unread.append((clean, str(error)))
            continue
        if found is None:
            if clean.strip():
                unread.append((clean, "it is no key=value"))
        elif found.sign == "~":
            sayings.pop(found.key, None)
        else:
            for saying in _flat(found.key, found.value, f"{found.sign}{found.key}={found.text}"):
                sayings[saying.key] = saying
    fit = {each.key: each for each in _fitting(kind, sayings.values(), unread) if each.value is not None}
    return Said(kind, fit, tuple(unread), tuple(remarks))


def _fitting(kind: str, sayings: Iterable[Saying], unread: list[tuple[str, str]]) -> Iterator[Saying]:
    """The sayings whose value is of the kind that its key takes; the others are noted."""
    for each in sayings:
        row = row_of(each.key, kind)
        try:
            yield Saying(each.key, fitted(row, each.key, each.value) if row else each.value, each.told)
        except Unfit as unfit:
            unread.append((each.told, str(unfit)))


def told_by_tree(tree: Mapping[str, Any]) -> Iterator[Saying]:
    """What a YAML tree says, without what is null, `???`, or a class that hydra makes.

    A whole tree names columns of images and videos whether the data have them or not.
    """
    for saying in _flat("", dict(tree), "") if tree else ():
        is_idle = (saying.key, saying.value) in COLUMNS or saying.key.endswith("_target_")
        if saying.value not in (None, "???") and not is_idle:
            yield Saying(saying.key, saying.value, f"{saying.key}={shown(saying.value)}")


def with_default(value: Any, default: Any) -> Any:
    """A number that only the environment knows, with veRL's own behind it."""
    match = _LONE.fullmatch(value) if isinstance(value, str) else None
    if match is None or isinstance(default, bool) or not isinstance(default, int | float):
        return value
    return f"${{oc.env:{match[1]},{default}}}"


def variables(sayings: Iterable[Saying]) -> list[str]:
    """The variables that the values leave to the environment."""
    found = [name for each in sayings for name in ENVIRONMENT.findall(str(each.value))]
    return list(dict.fromkeys(name for name in found if name != "HOME"))


def shown(value: Any) -> str:
    """A value in one line, as hydra takes it."""
    text = str(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _flat(key: str, value: Any, told: str) -> Iterator[Saying]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            below = f"{key}.{name}" if key else str(name)
            yield from _flat(below, inner, f"{below}={shown(inner)}")
    else:
        yield Saying(key, value, told if len(told) <= MAX_SHOWN else f"{told[: MAX_SHOWN - 3]}...")


def _without_unknown(argument: str, remarks: list[str]) -> str | None:
    """The argument without what only running would tell: a date in a name is left out, a whole value is not."""
    if UNKNOWN not in argument:
        return argument
    key, _, value = argument.partition("=")
    clean = re.sub(rf"[_-]?{UNKNOWN}", "", value)
    if not clean.strip("'\"") or not re.search(r"(name|path|dir|files?)$", key):
        return None
    remarks.append(f"{key}: what only running the script tells is left out of the value: {clean}")
    return f"{key}={clean}"
