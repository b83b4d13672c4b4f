"""The account of a run, gathered from its bus and its checkpoints. It only reads, and needs no service alive.

The order of reading makes it true of a run that goes on meanwhile: the ledger first, then what was quarantined before
it was written, then the queue, then the stream. What the trainer does after that is `waiting` here.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.port import Bus
from bus.subjects import Stream
from schemas.state import IncarnationTaken, ReleaseProgress, TrainProgress
from services.account.books import Books, open_books
from services.account.fates import seen
from services.account.quarantine import entries, refused_answers
from services.account.reckoning import Account, Reckoning
from services.config.tree import RunConfig
from services.rollout.plugins import load_plugins
from services.runtime.keys import INCARNATION, RELEASE, TRAIN
from services.trainer.pipeline.build import pipeline_of

_ATTEMPTS = 3
_REASON_CHARACTERS = 80


@dataclass(frozen=True)
class Audit:
    """The account of a run at `at` (seconds since the epoch), with its quarantine and the lives of its trainer."""

    run: str
    at: float
    phase: str
    step: int
    account: Account
    incarnation: IncarnationTaken | None = None
    quarantine: dict[str, Counter[str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `trinity audit --json`."""
        taken = self.incarnation
        return {
            "run": self.run,
            "at": self.at,
            "phase": self.phase,
            "step": self.step,
            **self.account.as_json(),
            "quarantine": {name: dict(counts.most_common()) for name, counts in sorted(self.quarantine.items())},
            "incarnation": taken.incarnation if taken else 0,
            "lineage": [resumed.model_dump() for resumed in taken.lineage] if taken else [],
        }


async def audit(bus: Bus, config: RunConfig) -> Audit:
    """The account of a run as it is now.

    Raises:
        UnreadableLedger: a checkpoint's ledger cannot be read.
        OperatorFailed, PluginError: the experience pipeline is not what the trainer has run.
    """
    if config.data_processor.experience_pipeline.operators:
        load_plugins([Path(directory) for directory in config.plugin_dirs])
    train, release, taken = await bus.get(TRAIN), await bus.get(RELEASE), await bus.get(INCARNATION)
    trained = train.message if train and isinstance(train.message, TrainProgress) else None
    released = release.message if release and isinstance(release.message, ReleaseProgress) else None
    incarnation = taken.message if taken and isinstance(taken.message, IncarnationTaken) else None
    lineage = incarnation.lineage if incarnation else ()
    books = await asyncio.to_thread(open_books, config.run_dir, lineage, trained)
    account = await reckoned(bus, config, books, released, trained)
    for _ in range(_ATTEMPTS):
        newer = await asyncio.to_thread(open_books, config.run_dir, lineage, trained)
        if not account.lost or newer.ledger.step == books.ledger.step:
            break  # otherwise a later checkpoint may have let a part of the stream go meanwhile: look again
        books, account = newer, await reckoned(bus, config, newer, released, trained)
    return Audit(
        run=bus.run,
        at=time.time(),
        phase=released.phase if released else "starting",
        step=trained.step if trained else 0,
        account=account,
        incarnation=incarnation,
        quarantine=await _quarantine(bus),
    )


async def reckoned(
    bus: Bus, config: RunConfig, books: Books, release: ReleaseProgress | None, train: TrainProgress | None
) -> Account:
    """The stream of a run held against its books."""
    refused = await refused_answers(bus)
    queued = (await bus.state(Stream.TASKS)).messages
    stream = await bus.state(Stream.EXPERIENCES)
    replayed = config.experience_source != "stream"  # its ledger is of another run's stream, or of rows of data
    reckoning = Reckoning(
        books,
        config.fresh_batch_size,
        first=books.end + 1 if replayed else stream.first,
        refused=refused,
        in_weights_below=train.sequence_floor if train else 0,
        pipeline=pipeline_of(config),
    )
    last = books.end if replayed else stream.last
    async for delivery in bus.read(Stream.EXPERIENCES, start=max(1, stream.first), follow=False):
        reckoning.take(seen(delivery, bus.run))
        last = max(last, delivery.sequence)
    return reckoning.close(
        last,
        released=release.released if release else 0,
        queued=queued,
        reissued=sum(each.times for each in release.reissued) if release else 0,
    )


async def _quarantine(bus: Bus) -> dict[str, Counter[str]]:
    """How many lie in quarantine, by stream and reason."""
    found: dict[str, Counter[str]] = {}
    async for entry in entries(bus):
        found.setdefault(entry.stream, Counter())[entry.reason[:_REASON_CHARACTERS]] += 1
    return found
