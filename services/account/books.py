"""What the trainer says is in the weights: the ledgers of the checkpoints in force, as they stand on disk."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.state import Resumed, TrainProgress
from services.trainer.checkpoints import LEDGER_FILE, checkpoints
from services.trainer.ledger import Ledger, Numbers

_ATTEMPTS = 5


class UnreadableLedger(Exception):
    """A ledger on disk is not one."""


@dataclass(frozen=True)
class Books:
    """`ledger` is the one in force; `kept` are those of all checkpoints in force, the oldest first.

    `repeated` names the numbers that stand more than once in the file, by `sequences` and `ordinals`. Where there is
    no directory to look into, the trainer's last word stands in for the ledger, and it knows no ordinals.
    """

    ledger: Ledger
    source: str
    kept: tuple[Ledger, ...] = ()
    repeated: dict[str, list[int]] = field(default_factory=dict)
    knows_ordinals: bool = True

    @property
    def end(self) -> int:
        """The last sequence that the ledger holds."""
        sequences = self.ledger.sequences
        return max(sequences.above, default=sequences.floor - 1)

    def base(self, first: int) -> Ledger:
        """From where a stream that begins at sequence `first` can be accounted for without trusting the ledger in
        force: the beginning, else the oldest ledger that holds all that was freed."""
        if first <= 1:
            return Ledger()
        held = [ledger for ledger in self.kept if ledger.sequences.floor >= first]
        return min(held, key=lambda ledger: ledger.sequences.floor, default=self.ledger)


def open_books(run_dir: Path, lineage: Sequence[Resumed], train: TrainProgress | None) -> Books:
    """The books of a run; of one without a checkpoint, empty ones.

    Raises:
        UnreadableLedger: a checkpoint's ledger cannot be read.
    """
    if not run_dir.is_dir() and train is not None:
        said = Ledger(train.step, Numbers(floor=train.sequence_floor), counts=train.counts)
        return Books(said, f"the trainer's last word: {run_dir} is not on this machine", knows_ordinals=False)
    for _ in range(_ATTEMPTS):
        try:
            return _read(run_dir, lineage)
        except FileNotFoundError:
            continue  # the trainer has pruned a checkpoint meanwhile
    raise UnreadableLedger(f"the checkpoints of {run_dir} change faster than they can be read: try again")


def _read(run_dir: Path, lineage: Sequence[Resumed]) -> Books:
    try:
        found = checkpoints(run_dir, lineage)
        kept = tuple(checkpoint.ledger() for checkpoint in found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableLedger(f"a ledger under {run_dir} cannot be read: {error}") from error
    if not found:
        return Books(Ledger(), "nothing is committed yet")
    path = found[-1].directory / LEDGER_FILE
    body = json.loads(path.read_text(encoding="utf-8"))
    return Books(kept[-1], str(path), kept, {name: _repeated(body[name]) for name in ("sequences", "ordinals")})


def _repeated(numbers: dict[str, Any]) -> list[int]:
    above = [int(number) for number in numbers["above"]]
    times = Counter(above)
    return sorted({number for number in above if times[number] > 1 or number < int(numbers["floor"])})
