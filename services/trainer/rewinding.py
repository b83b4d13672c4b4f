"""Going back to an earlier step of a run: its later checkpoints are superseded, as those of a dead trainer are.

The step is taken note of on the bus, under a number that a trainer would have taken. So it is done once, whatever
crashes afterwards; and a trainer that still runs is superseded too.
"""

import time
from pathlib import Path

import structlog

from bus.port import Bus
from bus.subjects import Stream
from schemas.state import IncarnationTaken, ReleaseProgress, TrainProgress
from schemas.weights import WeightVersion
from services.runtime.keys import INCARNATION, RELEASE, TRAIN
from services.trainer.checkpoints import Checkpoint, checkpoints
from services.trainer.committing import assert_whole, newest_on_disk
from services.trainer.incarnation import begin
from services.trainer.ledger import Ledger

log = structlog.get_logger()


class CannotGoBack(Exception):
    """The step has no checkpoint that is sound and in force, or the stream does not hold what follows it."""


async def go_back(bus: Bus, run_dir: Path, step: int, frees: bool = True, uses_again: bool = False) -> None:
    """Have the next trainer of a run go on from `step`, and train again on what the stream holds of the time after it.

    Args:
        frees: whether the run's experiences come from its own stream.
        uses_again: whether it trains on some of them more than once.

    Raises:
        CannotGoBack: see there.
        CannotResume: the stream lacks what the checkpoint has not seen.
    """
    held = await bus.get(INCARNATION)
    lineage = held.message.lineage if held and isinstance(held.message, IncarnationTaken) else ()
    found = checkpoints(run_dir, lineage)
    chosen = _of_step(found, run_dir, step)
    if frees:
        assert_whole(chosen.ledger(), chosen.directory, await bus.state(Stream.EXPERIENCES), uses_again)
    if chosen == found[-1]:
        return
    incarnation = await begin(bus, "going back", newest_on_disk(run_dir))
    await incarnation.goes_on_from(step)
    await _say_so(bus, chosen.ledger(), incarnation.number)
    superseded = [one.step for one in found if one.step > step]
    log.info("run_gone_back", step=step, incarnation=incarnation.number, superseded=superseded)


async def _say_so(bus: Bus, ledger: Ledger, incarnation: int) -> None:
    """For those who are started beside the trainer: it is at this step, and the run is not over."""
    answered, floor = ledger.ordinals, ledger.sequences.floor
    await bus.put(
        TRAIN,
        TrainProgress(
            weights=WeightVersion(incarnation=incarnation, version=ledger.step),
            step=ledger.step,
            answered_floor=answered.floor,
            answered_above=tuple(sorted(answered.above)),
            answered=len(answered),
            checkpoint_step=ledger.step,
            counts=ledger.counts,
            sequence_floor=floor,
            read_sequence=floor - 1,
            batches_closed=ledger.step,
            updated_at=time.time(),
        ),
    )
    held = await bus.get(RELEASE)
    if held and isinstance(held.message, ReleaseProgress) and held.message.phase == "finished":
        await bus.swap(RELEASE, held.message.model_copy(update={"phase": "draining"}), held.revision)


def _of_step(found: list[Checkpoint], run_dir: Path, step: int) -> Checkpoint:
    chosen = next((one for one in found if one.step == step), None)
    if chosen is None:
        there = ", ".join(str(one.step) for one in found) or "none"
        raise CannotGoBack(f"{run_dir} has no checkpoint of step {step} in force: there are {there}")
    damage = chosen.damage(is_thorough=True)
    if damage:
        raise CannotGoBack(f"{chosen.directory} is damaged: {'; '.join(damage)}")
    return chosen
