"""A row of the table between veRL's keys and ours, and the ways in which values change from one to the other."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Protocol

PPO, SFT, GENERATION, EVALUATION = "ppo", "sft", "generation", "evaluation"
RUNS = (PPO, GENERATION)
TRAINER_CONFIG = "trainer.trainer_config."


class Nothing:
    """Stands for a value that was not given."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


class Unfit(Exception):
    """A value has no counterpart; the message says why, and what stands in its place."""


class Values(Protocol):
    """What a configuration says, by dotted keys."""

    def value(self, key: str, default: Any = None) -> Any:
        """What the key says, else veRL's default of it (of veRL's keys), else `default`."""
        ...

    def is_said(self, key: str) -> bool: ...

    def count(self, key: str) -> int:
        """Entries of the list that a key says; 1 for one that is no list, 0 where it is not there."""
        ...


class Owned(Values, Protocol):
    """What a configuration of ours says."""

    def agreed(self, section: str, name: str, value: Any = NOTHING) -> Any:
        """What the first entry of a list says under `name`, else `value`; entries that say the same are done with."""
        ...


@dataclass(frozen=True)
class Spoken:
    """A value of ours with words of its own on where it comes from."""

    value: Any
    origin: str


Forward = Callable[[str, Any, Values], Mapping[str, Any]]
Backward = Callable[[str, Owned], Any]


@dataclass(frozen=True)
class Way:
    """How a value of veRL's becomes ours (a mapping of our dotted keys), and how it comes back.

    `backward` gives `NOTHING` where our configuration does not say it. `told` is the change in a few words, for the
    documentation.
    """

    forward: Forward
    backward: Backward = lambda key, ours: NOTHING
    told: str = ""


@dataclass(frozen=True)
class Row:
    """One key of veRL's, or several: `*` stands for any text, `{a,b}` for either.

    `ours` names our keys, and is empty where there is no counterpart. `note` says why, or where behaviour differs; a
    conversion tells it where `tells` says so of the value, or in its own words. `default` is veRL's own; with
    `is_written` it is written where the source is silent, since ours is another (`always`: also where only what was
    said is asked for). `where` narrows the pattern down.
    """

    verl: str
    ours: str = ""
    way: Way | None = None
    note: str = ""
    default: Any = NOTHING
    is_written: bool = False
    always: bool = False
    kinds: tuple[str, ...] = RUNS
    tells: Callable[[Any, Values], bool | str] | None = None
    where: Callable[[str], bool] | None = None

    def fits(self, key: str, kind: str) -> bool:
        """Whether the row is about a key of a launch of this kind."""
        is_named = any(fnmatchcase(key, pattern) for pattern in spelled_out(self.verl))
        return kind in self.kinds and is_named and (self.where is None or self.where(key))

    @property
    def has_counterpart(self) -> bool:
        return self.way is not None

    @property
    def is_one_key(self) -> bool:
        return not re.search(r"[*{]", self.verl)


@cache
def spelled_out(pattern: str) -> tuple[str, ...]:
    """The patterns that one with `{a,b}` stands for."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return (pattern,)
    return tuple(
        whole
        for choice in match[1].split(",")
        for whole in spelled_out(pattern[: match.start()] + choice + pattern[match.end() :])
    )


def same(ours: str) -> Way:
    """The value as it is, under our key."""
    return Way(lambda key, value, said: {ours: value}, lambda key, mine: mine.value(ours, NOTHING))


def named(ours: str, names: Mapping[Any, Any]) -> Way:
    """A name, or another closed choice, by its counterpart."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if value not in names:
            raise Unfit(f"has no counterpart; those with one: {', '.join(map(str, names))}")
        return {ours: names[value]}

    def backward(key: str, mine: Values) -> Any:
        value = mine.value(ours, NOTHING)
        return next((theirs for theirs, own in names.items() if own == value), NOTHING)

    told = ", ".join(f"{_shown(theirs)} → {_shown(own)}" for theirs, own in names.items() if theirs != own)
    return Way(forward, backward, told)


def path(ours: str) -> Way:
    """A path, in which `~` is the home directory of whoever runs it."""
    return Way(
        lambda key, value, said: {ours: at_home(value)} if value else {},
        lambda key, mine: mine.value(ours, NOTHING) or NOTHING,
    )


def at_home(value: Any) -> Any:
    """A path with `~` as an interpolation, which every part of a configuration understands."""
    return re.sub(r"^~(?=/|$)", "${oc.env:HOME}", value) if isinstance(value, str) else value


def verbatim() -> Way:
    """veRL's own key and value, below `trainer.trainer_config`."""
    return Way(
        lambda key, value, said: {TRAINER_CONFIG + key: value},
        lambda key, mine: mine.value(TRAINER_CONFIG + key, NOTHING),
    )


def counterparts(rows: tuple[Row, ...]) -> Iterator[Row]:
    """The rows that have one."""
    return (row for row in rows if row.has_counterpart)


def _shown(value: Any) -> str:
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if not isinstance(value, int) or (isinstance(value, bool))
        else str(value)
    )
