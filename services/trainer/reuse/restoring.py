"""After a restart, the groups that may be trained on again are read from the stream once more, by their sequences."""

import structlog

from services.trainer.intake import Intake
from services.trainer.reuse.reserve import ReserveLost
from services.trainer.source import Source

log = structlog.get_logger()


async def restored(source: Source, intake: Intake) -> None:
    """Give the intake what its ledger holds for reuse.

    Raises:
        OperatorFailed: the pipeline cannot work on a group any more.
        ReserveLost: the stream does not hold a group, or the pipeline leaves something else of it than before.
    """
    wanted = intake.lacking
    if not wanted:
        return
    async for delivery in source.again(wanted[0]):
        if delivery.sequence in wanted:
            intake.restore(delivery.sequence, delivery.message)
        if delivery.sequence >= wanted[-1]:
            break
    lost = intake.lacking
    if lost:
        raise ReserveLost(
            f"the checkpoint may train again on {len(lost)} groups that the experience stream does not hold (sequence "
            f"{lost[0]} is the first): begin from a later checkpoint, or go on without "
            "buffer.trainer_input.experience_buffer.replay_buffer"
        )
    log.info("reserve_restored", groups=len(wanted), first_sequence=wanted[0], last_sequence=wanted[-1])
