"""The ledger: exactly which stream sequences and which tasks are in the weights.

Invariant: a sequence or a task ordinal enters the ledger once, together with the step that used it; the checkpoint
holds both, so after any crash the surviving steps hold each experience exactly once. What is used again is so by a rule
that the ledger declares, and it counts every use.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.state import Counts, Resumed
from services.config.reuse import ReuseRule
from services.trainer.reuse.pool import Drawn
from services.trainer.reuse.record import NO_REUSE, Reuse

FILTERED = "filtered:"
ABANDONED = "filtered:abandoned"


@dataclass
class Numbers:
    """A set of integers that grows nearly in order: everything below `floor`, and the exceptions in `above`."""

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self.above

    def __len__(self) -> int:
        return self.floor + len(self.above)

    def add(self, numbers: Iterable[int]) -> None:
        self.above.update(number for number in numbers if number >= self.floor)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    def as_json(self) -> dict[str, Any]:
        return {"floor": self.floor, "above": sorted(self.above)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Numbers":
        return cls(floor=int(value["floor"]), above={int(number) for number in value["above"]})


@dataclass(frozen=True)
class Entry:
    """What one message of the stream came to: its sequence, its task (if it could be read) and its fate.

    `fate` is `trained`, `duplicate`, `quarantined`, or `filtered:<rule>`. `experiences` counts those that have this
    fate: all that the message held, or, of a group that is trained, those that no rule has left out. `filtered` counts,
    by rule, what was left out of a group; of one that is left out whole, `fate` names the rule that took the last.
    """

    sequence: int
    ordinal: int | None
    fate: str
    experiences: int = 0
    tokens: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Ledger:
    """What the weights of `step` hold. Stream sequences begin at 1.

    `abandoned` holds the tasks that were given up and not answered since, with the experiences that they owed.
    `short_batches` are the sequences after which a batch was closed before it was full, because nothing more was to
    come. `run`, `incarnation` and `lineage` say which trainer wrote this, and from which steps its predecessors'
    successors went on. `reuse` says by which rules experiences were trained on more than once, and what may be again.
    """

    step: int = 0
    sequences: Numbers = field(default_factory=lambda: Numbers(floor=1))
    ordinals: Numbers = field(default_factory=Numbers)
    counts: Counts = field(default_factory=Counts)
    abandoned: dict[int, int] = field(default_factory=dict)
    short_batches: list[int] = field(default_factory=list)
    run: str = ""
    incarnation: int = 0
    lineage: tuple[Resumed, ...] = ()
    reuse: Reuse = NO_REUSE

    @property
    def needed(self) -> int:
        """The lowest sequence of the stream that a trainer needs which goes on from here."""
        first = self.reuse.pool.first
        return self.sequences.floor if first is None else min(first, self.sequences.floor)

    def record(self, entries: Iterable[Entry]) -> None:
        """Enter what one step used."""
        entries = list(entries)
        self.sequences.add(entry.sequence for entry in entries)
        self.ordinals.add(entry.ordinal for entry in entries if entry.ordinal is not None)
        self.counts = _counted(self.counts, entries)
        for entry in entries:
            self._settle(entry)

    def reused(self, step: int, rule: ReuseRule | None, drawn: Drawn) -> None:
        """Enter what step `step` has trained on again by `rule`, and what that leaves to be used again."""
        self.reuse = self.reuse.after(step, rule, drawn.pool)
        counts = self.counts
        again = {"reused": counts.reused + drawn.experiences, "tokens_reused": counts.tokens_reused + drawn.tokens}
        self.counts = counts.model_copy(update=again)

    def _settle(self, entry: Entry) -> None:
        """Remember who was abandoned. One that is answered after all does not count as filtered any more."""
        if entry.ordinal is None:
            return
        if entry.fate == ABANDONED:
            self.abandoned[entry.ordinal] = entry.experiences
        elif entry.fate.startswith(("trained", FILTERED)) and entry.ordinal in self.abandoned:
            rule = ABANDONED.removeprefix(FILTERED)
            left = self.counts.filtered.get(rule, 0) - self.abandoned.pop(entry.ordinal)
            filtered = {**self.counts.filtered, rule: left}
            self.counts = self.counts.model_copy(update={"filtered": {k: v for k, v in filtered.items() if v}})

    def to_json(self) -> str:
        body = {
            "format": "trinity-ledger",
            "version": 1,
            "run": self.run,
            "incarnation": self.incarnation,
            "lineage": [resumed.model_dump(mode="json") for resumed in self.lineage],
            "step": self.step,
            "sequences": self.sequences.as_json(),
            "ordinals": self.ordinals.as_json(),
            "abandoned": {str(ordinal): owed for ordinal, owed in sorted(self.abandoned.items())},
            "short_batches": self.short_batches,
            "counts": self.counts.model_dump(mode="json"),
            **({} if self.reuse == NO_REUSE else {"reuse": self.reuse.as_json()}),
        }
        return json.dumps(body, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        body = json.loads(text)
        if body.get("format") != "trinity-ledger" or body.get("version") != 1:
            raise ValueError(f"not a ledger of version 1: {text[:80]!r}")
        return cls(
            step=int(body["step"]),
            sequences=Numbers.from_json(body["sequences"]),
            ordinals=Numbers.from_json(body["ordinals"]),
            counts=Counts.model_validate(body["counts"]),
            abandoned={int(ordinal): int(owed) for ordinal, owed in body.get("abandoned", {}).items()},
            short_batches=[int(sequence) for sequence in body.get("short_batches", [])],
            run=str(body.get("run", "")),
            incarnation=int(body.get("incarnation", 0)),
            lineage=tuple(Resumed.model_validate(resumed) for resumed in body.get("lineage", [])),
            reuse=Reuse.from_json(body["reuse"]) if "reuse" in body else NO_REUSE,
        )


def _counted(counts: Counts, entries: list[Entry]) -> Counts:
    filtered = dict(counts.filtered)
    for entry in entries:
        owed = {ABANDONED.removeprefix(FILTERED): max(entry.experiences, 1)} if entry.fate == ABANDONED else {}
        for rule, count in (owed or entry.filtered).items():
            filtered[rule] = filtered.get(rule, 0) + count
    trained = [entry for entry in entries if entry.fate == "trained"]
    return Counts(
        trained=counts.trained + sum(entry.experiences for entry in trained),
        filtered=filtered,
        quarantined=counts.quarantined + sum(entry.fate == "quarantined" for entry in entries),
        duplicates=counts.duplicates + sum(entry.experiences for entry in entries if entry.fate == "duplicate"),
        tokens_trained=counts.tokens_trained + sum(entry.tokens for entry in trained),
        reused=counts.reused,
        tokens_reused=counts.tokens_reused,
    )
