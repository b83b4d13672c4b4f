"""What the monitor asks of a record: the curves of a run, in files or on a tracking server.

The same stream always gives the same entries at the same positions. A record that says how far it is gets what comes
after that, so nothing is recorded twice, whoever dies when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.reports import ServiceName

ENTRIES_PER_SEQUENCE = 1 << 16
"""Positions that each message of the stream has: one for what it completes, the rest for what a run's end after it
does, of which the last one is the last."""

Role = Literal["explorer", "trainer"]


@dataclass(frozen=True)
class Entry:
    """The values of one service at one step; `at` is in seconds since the epoch."""

    position: int
    service: ServiceName
    step: int
    at: float
    values: Mapping[str, float]

    @property
    def role(self) -> Role:
        """Of the two runs of an experiment that a tracking server shows, the one that this belongs to."""
        return "trainer" if self.service == "trainer" else "explorer"


class Record(Protocol):
    """All of it blocks: it is called in a thread, and never by two at once."""

    @property
    def shown(self) -> str:
        """Where a person finds the record."""
        ...

    def open(self) -> int:
        """The last position that the record holds; 0 for none."""
        ...

    def write(self, entries: Sequence[Entry]) -> None:
        """Record what is not recorded yet. May be given again what is."""
        ...

    def close(self) -> None:
        """Send what has not been sent. After it, `open` may be called again."""
        ...
