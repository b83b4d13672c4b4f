"""What an earlier run has stored of its experiences, as a stream: whole groups, at the sequences that they had.

Invariant: what a sequence holds is a function of the store, so a trainer that goes on from its ledger reads what it
would have read. A second epoch goes on where the first one ended, with sequences and ordinals of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from bus.delivery import LogDelivery
from bus.port import Delivery
from services.config.tree import RunConfig
from services.store.build import stored_answers, stored_rows
from services.store.errors import StoreError
from services.store.messages import Answer
from services.store.place import Place
from services.store.sinks import source

_MESSAGES_AT_ONCE = 32
"""The store is read by a thread, so many messages at a time."""


@dataclass(frozen=True)
class Extent:
    """The last sequence of a store, and how many ordinals its tasks have."""

    sequences: int
    ordinals: int


class StoredStream:
    """`services.trainer.source.Source` over a store, `total_epochs` times. Its groups are those of the run itself."""

    def __init__(self, place: Place, config: RunConfig, of_run: str | None) -> None:
        self._place = place
        self._run = config.run_name
        self._of_run = of_run
        self._epochs = config.buffer.total_epochs
        self._is_read = False

    @property
    def run(self) -> str:
        return self._run

    @property
    def steps(self) -> int | None:
        """Not known before the store is read."""
        return None

    async def read(self, start: int) -> AsyncIterator[Delivery]:
        """Raises `StoreError` where the store cannot be read, holds no experiences, or is in disorder."""
        answers = await asyncio.to_thread(self._answers, start)
        while portion := await asyncio.to_thread(_some, answers):
            for sequence, answer in portion:
                yield LogDelivery(answer, None, sequence, self._place.shown, stored_at=0.0, payload=b"")
        self._is_read = True

    def again(self, start: int) -> AsyncIterator[Delivery]:
        return self.read(start)

    def rule(self, delivery: Delivery) -> str | None:
        """All of it is trained on."""
        return None

    async def is_over(self, answered_floor: int, read: int) -> bool:
        return self._is_read

    async def close(self) -> None:
        """Nothing is open."""

    def _answers(self, start: int) -> Iterator[tuple[int, Answer]]:
        if self._epochs == 1:
            return stored_answers(self._place, self._run, self._of_run, start)
        extent = extent_of(self._place, self._of_run)
        return (found for epoch in range(self._epochs) for found in self._epoch(epoch, extent, start))

    def _epoch(self, epoch: int, extent: Extent, start: int) -> Iterator[tuple[int, Answer]]:
        before, ordinals = epoch * extent.sequences, epoch * extent.ordinals
        if start > before + extent.sequences:
            return
        for sequence, answer in stored_answers(self._place, self._run, self._of_run, max(1, start - before)):
            task = answer.task.model_copy(update={"ordinal": answer.task.ordinal + ordinals})
            yield before + sequence, answer.model_copy(update={"task": task})


def extent_of(place: Place, of_run: str | None) -> Extent:
    """
    Raises:
        StoreError: the store holds no experiences.
    """
    sequences = ordinals = 0
    for row in stored_rows(place, of_run):
        sequences, ordinals = row["sequence"], max(ordinals, row["ordinal"] + 1)
    if sequences == 0:
        raise StoreError(f"{place.shown} holds no experiences: set the path to a store that a run has filled")
    return Extent(sequences, ordinals)


def stored_stream(config: RunConfig) -> StoredStream:
    """The stream of the store that the configuration names; `subset_name` is the run, where it holds several.

    Raises:
        StoreError: its path names none.
    """
    buffer = config.buffer.trainer_input.experience_buffer
    return StoredStream(source(config), config, buffer.subset_name if buffer else None)


def _some(answers: Iterator[tuple[int, Answer]]) -> list[tuple[int, Answer]]:
    return [found for _, found in zip(range(_MESSAGES_AT_ONCE), answers, strict=False)]
