"""From what a launch of veRL says to lines of a configuration of ours, each with where it comes from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.config.spelling import nearest
from services.convert.placement import RULES
from services.convert.row import GENERATION, NOTHING, RUNS, Row, Spoken, Unfit, spelled_out
from services.convert.said import Said, Saying, with_default
from services.convert.table import TABLE, row_of

MAX_ALIKE = 4
OFFSET = "synchronizer.sync_offset"


@dataclass
class Line:
    """One value of ours, and the keys of veRL's, or the rules, that it comes from."""

    value: Any
    origins: list[str] = field(default_factory=list)


@dataclass
class Conversion:
    """What became of a launch. `left` has the keys without a counterpart by the reason, `idle` those that change
    nothing in this run, `unknown` those that veRL does not know, with advice."""

    lines: dict[str, Line] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def values(self) -> dict[str, Any]:
        return {key: line.value for key, line in self.lines.items()}

    def put(self, key: str, value: Any, origin: str) -> None:
        line = self.lines.setdefault(key, Line(value))
        line.value = value
        if origin not in line.origins:
            line.origins.append(origin)

    def differs(self, sentence: str) -> None:
        if sentence not in self.differences:
            self.differences.append(sentence)


def converted(said: Said, *, said_only: bool = False, on_policy: bool = False) -> Conversion:
    """The configuration that trains as the launch does.

    `said_only` leaves out veRL's defaults, but for those without which there is no run. `on_policy` samples each batch
    with the newest weights, as veRL does, in place of one while the one before it trains.
    """
    found = Conversion()
    for saying in said.sayings.values():
        _take(found, said, saying)
    for row in TABLE:
        if _has_default(row, said.kind) and not said.is_said(row.verl) and row_of(row.verl, said.kind) is row:
            _take_default(found, said, row, said_only)
    for rule in RULES:
        if said.kind in rule.kinds:
            for key, value, origin in rule.values(said, found.values):
                found.put(key, value, origin)
            for sentence in rule.sentences(said, found.values):
                found.differs(sentence)
    if on_policy and OFFSET in found.lines:
        found.lines[OFFSET] = Line(0, ["veRL's own order"])
        found.differences = [each for each in found.differences if not each.startswith("sync_offset")]
    for argument, reason in said.unread:
        found.left.setdefault(reason, []).append(argument)
    return found


def _take(found: Conversion, said: Said, saying: Saying) -> None:
    row = row_of(saying.key, said.kind)
    if row is None:
        found.unknown.append(f"{saying.told}: {advice(saying.key, said.kind)}")
    elif row.way is None:
        found.left.setdefault(row.note, []).append(saying.told)
    else:
        try:
            mine = row.way.forward(saying.key, with_default(saying.value, row.default), said)
        except Unfit as unfit:
            found.left.setdefault(str(unfit), []).append(saying.told)
            return
        for key, value in mine.items():
            found.put(key, *_spoken(value, saying.key if value == saying.value else saying.told))
        tells = row.tells is not None and row.tells(saying.value, said)
        if tells:
            found.differs(f"{saying.told}: {tells if isinstance(tells, str) else row.note}")
        elif not mine and saying.value != row.default:
            found.idle.append(saying.told)


def _has_default(row: Row, kind: str) -> bool:
    """Whether veRL's default counts in a launch of this kind; one that only generates needs none of training's."""
    return row.is_one_key and kind in row.kinds and (kind != GENERATION or row.kinds != RUNS)


def _take_default(found: Conversion, said: Said, row: Row, said_only: bool) -> None:
    if row.default is NOTHING or row.way is None or not row.is_written or (said_only and not row.always):
        return
    try:
        mine = row.way.forward(row.verl, row.default, said)
    except Unfit:
        return
    for key, value in mine.items():
        if key not in found.lines:
            found.put(key, *_spoken(value, f"veRL's default of {row.verl}"))


def _spoken(value: Any, origin: str) -> tuple[Any, str]:
    """A value, and where it comes from."""
    return (value.value, value.origin) if isinstance(value, Spoken) else (value, origin)


def advice(key: str, kind: str) -> str:
    """What to do about a key that veRL does not know."""
    meant = nearest(key, _known(kind), likeness=0.75)
    return (
        f"no key of veRL's that is known here; did you mean {meant}?"
        if meant
        else "no key of veRL's that is known here"
    )


def _known(kind: str) -> Iterator[str]:
    from services.config.verl.keys import SECTIONS

    for row in TABLE:
        if kind in row.kinds:
            yield from (key for key in spelled_out(row.verl) if "*" not in key)
    for section, names in SECTIONS.items():
        yield from (f"{section}.{name}" for name in names)


def alike(told: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The keys by their reason, in few words: many of one section are counted."""
    for reason, keys in told.items():
        sections: dict[str, list[str]] = {}
        for each in keys:
            sections.setdefault(each.partition("=")[0].rpartition(".")[0], []).append(each)
        for section, members in sections.items():
            if len(members) > MAX_ALIKE:
                yield f"{section}.* ({len(members)} keys)", reason
            else:
                yield from ((each, reason) for each in members)
