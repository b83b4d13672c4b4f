"""What the monitor asks of a store that it writes. `write` and `position` never disagree, whatever dies when."""

from collections.abc import Sequence
from typing import Protocol

from services.store.messages import Row
from services.store.place import Place


class Store(Protocol):
    """A store of one run's experiences. Every call may raise `StoreBusy`, and may then be made again."""

    @property
    def place(self) -> Place: ...

    @property
    def position(self) -> int:
        """The last sequence of the stream that is stored for good, with all before it."""

    @property
    def held(self) -> int:
        """Rows that were taken by `write` and are not stored for good yet."""

    def open(self, run: str) -> None:
        """Find or make the store, and the position at which an earlier life ended.

        Raises:
            StoreError: what is there is no store of this run.
        """

    def write(self, rows: Sequence[Row], position: int) -> None:
        """Take the rows of all messages after the last ones, up to sequence `position`: whole messages, in order."""

    def settle(self) -> None:
        """Store for good what is held."""

    def note_consumed(self, below: int) -> None:
        """The weights hold all sequences below this one; a store that cannot say so of a row ignores it."""

    def close(self) -> None: ...
