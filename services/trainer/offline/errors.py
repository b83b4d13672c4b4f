"""The errors of rows of data.

DataError           data that cannot be trained on; the message names the file, the row and the key
RowFault            what is wrong with one row, before anybody knows which it is
"""


class RowFault(ValueError):
    """A row that is not what its format says; the message names the key."""


class DataError(Exception):
    """Data that cannot be trained on. `row` counts from 0; None where it is not one row's fault."""

    def __init__(self, place: str, reason: str, row: int | None = None) -> None:
        self.place, self.row, self.reason = place, row, reason
        where = place if row is None else f"{place}, row {row}"
        super().__init__(f"{where}: {reason}")
