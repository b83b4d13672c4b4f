"""Rows of data as a stream: sequence `n` (from 1) is the n-th row in reading order, in whatever epoch that is.

Invariant: what a sequence holds is a function of the data, the seed and the configuration, so a trainer that goes on
from its ledger reads what it would have read.
"""

import asyncio
import math
from collections.abc import AsyncIterator

from bus.delivery import LogDelivery
from bus.port import Delivery
from schemas.experiences import GroupSampled
from schemas.tasks import TaskIdentity
from services.config.tree import RunConfig
from services.trainer.offline.errors import DataError
from services.trainer.offline.formatting import Formatter

_ROWS_AT_ONCE = 32
"""Rows are laid out by a thread, so many at a time."""


class RowStream:
    """`services.trainer.source.Source` over the rows of a data file. With `total_steps` it is endless."""

    def __init__(self, config: RunConfig, formatter: Formatter) -> None:
        self._run = config.run_name
        self._formatter = formatter
        self._rows = len(formatter.rows)
        self._rows_of_a_batch = max(1, config.train_batch_size // formatter.experiences_of_a_row)
        self._end = None if config.total_steps is not None else self._rows * config.buffer.total_epochs
        self._is_read = False
        self._fruitless = 0

    @property
    def run(self) -> str:
        return self._run

    @property
    def steps(self) -> int | None:
        """The most optimizer steps that the rows make; fewer where some are not trained on."""
        return None if self._end is None else math.ceil(self._end / self._rows_of_a_batch)

    async def read(self, start: int) -> AsyncIterator[Delivery]:
        """Raises `DataError` at a row that is not what the format says, and where no row of an epoch is of use."""
        first = start
        while self._end is None or first <= self._end:
            after = first + _ROWS_AT_ONCE if self._end is None else min(first + _ROWS_AT_ONCE, self._end + 1)
            for sequence, group in enumerate(await asyncio.to_thread(self._groups, first, after), start=first):
                self._count(group)
                yield LogDelivery(group, None, sequence, self._formatter.rows.place, stored_at=0.0, payload=b"")
            first = after
        self._is_read = True

    def again(self, start: int) -> AsyncIterator[Delivery]:
        return self.read(start)

    def rule(self, delivery: Delivery) -> str | None:
        message = delivery.message
        return self._formatter.rule(message) if isinstance(message, GroupSampled) else None

    async def is_over(self, answered_floor: int, read: int) -> bool:
        return self._is_read

    async def close(self) -> None:
        """Nothing is open."""

    def identity(self, sequence: int) -> TaskIdentity:
        """Which row a sequence is, and in which epoch."""
        epoch, place = divmod(sequence - 1, self._rows)
        return TaskIdentity(
            ordinal=sequence - 1,
            batch=(sequence - 1) // self._rows_of_a_batch,
            taskset=self._formatter.rows.name,
            epoch=epoch,
            index=int(self._formatter.rows.order_in(epoch)[place]),
        )

    def _groups(self, first: int, after: int) -> list[GroupSampled]:
        return [self._formatter.group(self.identity(sequence)) for sequence in range(first, after)]

    def _count(self, group: GroupSampled) -> None:
        """Where no row is of use, an endless stream would be read for ever without a batch."""
        rule = self._formatter.rule(group)
        self._fruitless = self._fruitless + 1 if rule else 0
        if self._fruitless >= self._rows:
            raise DataError(
                self._formatter.rows.place,
                f"none of its {self._rows} rows can be trained on; the last one is {rule} (model.max_model_len decides "
                "what is too long)",
            )
