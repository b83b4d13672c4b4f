"""`trainer.trainer_config` as it is meant: each key at the one place where veRL 0.9.1 reads it, and what becomes of it.

A null, an empty section and Hydra's `_target_` say nothing. The tree of the fake trainer is its own arguments.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from services.config.keys import put
from services.config.tree import RunConfig
from services.config.verl.keys import (
    ACTOR_KEY,
    BELOW,
    ENGINE_OF,
    IDLE,
    MODEL_KEY,
    MOVED,
    OF_ALL_RANKS,
    OURS,
    REFERENCE_KEY,
    REFUSED,
    SAME,
    SECTIONS,
)

PREFIX = "trainer.trainer_config."
Fate = Literal["same", "ours", "idle", "refused", "verl", "unknown"]
Role = Literal["actor", "reference", "critic"]

_PLACES: dict[Role, str] = {"actor": ACTOR_KEY, "reference": REFERENCE_KEY, "critic": "critic"}
_UNSET = (("total_training_steps", -1),)
"""What veRL's own files write for a value that its program fills in."""
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float32": "fp32"}


@dataclass(frozen=True)
class Said:
    """One value: the key as it was written, the place where veRL reads it, and the value there."""

    written: str
    key: str
    value: Any

    @property
    def place(self) -> str:
        """The dotted key in this project's configuration, as it was written."""
        return PREFIX + self.written

    @property
    def fate(self) -> Fate:
        """What becomes of the key."""
        if self.key in SAME:
            return "same"
        for fate, table in (("idle", IDLE), ("ours", OURS)):
            if explanation(self.key, table) is not None:
                return fate  # type: ignore[return-value]
        if explanation(self.key, REFUSED) is not None and not (self.section and self.kind is None):
            return "refused"
        return "verl" if self.kind is not None else "unknown"

    @property
    def section(self) -> str:
        """The section of veRL's tree that holds the key; empty where there is none."""
        above = [section for section in SECTIONS if self.key.startswith(f"{section}.")]
        return max(above, key=len, default="")

    @property
    def kind(self) -> str | None:
        """The kind of the field; of a value below a mapping, anything. None where veRL has no such key."""
        field, *below = self.key.removeprefix(f"{self.section}.").split(".")
        kind = SECTIONS[self.section].get(field) if self.section else None
        if not below or kind is None:
            return kind
        known = BELOW.get(field)
        return "any" if kind in ("dict", "any") and (known is None or below[0] in known) else None


def said(config: RunConfig) -> list[Said]:
    """All values of `trainer.trainer_config`, in the order in which they were written."""
    if config.trainer.trainer_type == "fake":
        return []
    return [_at_its_place(key, value, config.trainer_ranks) for key, value in _leaves(config.trainer.trainer_config)]


def given(config: RunConfig, key: str) -> Any:
    """The value of one key of veRL's; None where it is not set."""
    return next((each.value for each in said(config) if each.key == key), None)


def below(config: RunConfig, section: str) -> dict[str, Any]:
    """What a section of veRL's tree says, without what is owned by this project or has no effect."""
    found: dict[str, Any] = {}
    for each in said(config):
        if each.section == section and each.fate in ("same", "verl"):
            put(found, each.key.removeprefix(f"{section}."), each.value)
    return found


def place_of(role: Role) -> str:
    """The section of a role: what beside model, optimizer and engine is said of it."""
    return _PLACES[role]


def engine_of(role: Role) -> str:
    """The section of a role's FSDP engine."""
    return ENGINE_OF[_PLACES[role]]


def model_of(role: Role) -> str:
    """The section of a role's model. The reference is the actor's, as it was."""
    return "critic.model" if role == "critic" else MODEL_KEY


def explanation(key: str, table: Mapping[str, str]) -> str | None:
    """What a table says of a key."""
    return next((words for pattern, words in table.items() if fnmatchcase(key, pattern)), None)


def _at_its_place(written: str, value: Any, ranks: int) -> Said:
    key = moved_key(written)
    if key in OF_ALL_RANKS and isinstance(value, int) and value % max(1, ranks) == 0:
        return Said(written, OF_ALL_RANKS[key], value // max(1, ranks))
    if ".mixed_precision." in key:
        value = _PRECISIONS.get(str(value), value)
    return Said(written, key, value)


def moved_key(key: str) -> str:
    """Where veRL reads a key that may stand at another place, or be spelled as in an older version."""
    for before, after in MOVED.items():
        if key == before or key.startswith(f"{before}."):
            return moved_key(after + key.removeprefix(before))
    return key


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Values with their dotted keys; a list is one value."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif value is not None and name != "_target_" and (name, value) not in _UNSET:
            yield key, value
