"""The rows of a data set and the order in which they come: a function of the seed and the epoch alone."""

from collections.abc import Iterator
from typing import Any

from services.config.rows import RowSchema
from services.rollout.config import DataSelectorConfig, ExperienceBufferConfig, TasksetConfig
from services.rollout.errors import RolloutError, TasksetError
from services.rollout.ordering import order
from services.rollout.sources import read
from services.rollout.tasksets import Taskset
from services.trainer.offline.errors import DataError, RowFault
from services.trainer.offline.samples import Sample, samples

CHECKED_ROWS = 10_000
"""So many rows are looked at before anything starts; later ones when they are read."""


class Rows:
    """The rows that a buffer of the configuration names, as samples.

    Raises:
        DataError: they are not there, not readable, or none; or the order is not known.
    """

    def __init__(self, name: str, buffer: ExperienceBufferConfig, schema: RowSchema) -> None:
        self.name = buffer.name or name
        self.place = buffer.path or ""
        self.layout = buffer.format
        self._schema = schema
        self._selector: DataSelectorConfig = buffer.data_selector
        self._table = _opened(self.name, buffer)
        self.order_in(0)

    def __len__(self) -> int:
        return len(self._table)

    def order_in(self, epoch: int, size: int | None = None) -> Any:
        """The places `0 .. size-1` (by default, of all rows) in the order of an epoch (from 0)."""
        try:
            return order(len(self) if size is None else size, epoch, self._selector)
        except RolloutError as error:
            raise DataError(self.place, f"data_selector: {error}") from error

    def samples(self, index: int) -> tuple[Sample, ...]:
        """What is learned from row `index` of the file.

        Raises:
            DataError: the row is not what the format says.
        """
        try:
            return samples(self._table.row(index), self.layout, self._schema)
        except RowFault as error:
            raise DataError(self.place, str(error), index) from error
        except TasksetError as error:
            raise DataError(self.place, error.reason) from error


def faults(name: str, buffer: ExperienceBufferConfig, schema: RowSchema) -> Iterator[DataError]:
    """The first thing that is wrong with the data, as far as no tokenizer is needed to find it."""
    try:
        rows = Rows(name, buffer, schema)
        for index in range(min(len(rows), CHECKED_ROWS)):
            rows.samples(index)
    except DataError as error:
        yield error


def _opened(name: str, buffer: ExperienceBufferConfig) -> Taskset:
    settings = TasksetConfig(
        name=name, path=buffer.path, split=buffer.split, subset_name=buffer.subset_name, format=buffer.format
    )
    place = buffer.path or name
    try:
        table, columns = read(name, settings, None)
    except TasksetError as error:
        raise DataError(place, error.reason.removeprefix(f"{place} ")) from error
    if len(table) == 0:
        raise DataError(place, "it has no rows")
    return Taskset(name, settings, table, columns)
