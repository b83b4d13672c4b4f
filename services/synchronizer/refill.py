"""Tasks that make up for what was filtered. Pure functions of what trainer and synchronizer have recorded.

Batches are counted by *places*: a task's place is its ordinal, less the tasks before it that count for nothing because
what they gave was filtered. Invariant: the released tasks make at most as many experiences as there are places below
that of the next task, so a batch is released for a step only when the batches before it cannot reach that step.
"""

from collections.abc import Sequence

from schemas.state import Refill, TrainProgress


def tasks_made_up(
    released: int, unanswered: int, train: TrainProgress | None, train_batch_size: int, group: int
) -> int:
    """How many of the `released` tasks count for nothing; below 0 where answers have given more than they owed.

    A task that is not answered yet counts for the `group` experiences that it owes, the others for what they gave.
    """
    if train is None or train.batches_closed is None:
        return 0
    given = train.batches_closed * train_batch_size + train.gathered
    return released - (given + unanswered * group) // group


def tasks_before(ordinal: int, refills: Sequence[Refill]) -> int:
    """How many of the tasks before this one count for nothing, as recorded when it was released."""
    known = [refill.tasks for refill in refills if refill.first_ordinal <= ordinal]
    return known[-1] if known else 0


def recorded(refills: Sequence[Refill], first_ordinal: int, tasks: int, answered_floor: int) -> tuple[Refill, ...]:
    """The record with the batch that begins at `first_ordinal`, without what no unanswered task needs any more."""
    grown = [*refills]
    if tasks != tasks_before(first_ordinal, grown):
        grown.append(Refill(first_ordinal=first_ordinal, tasks=tasks))
    needed = [place for place, refill in enumerate(grown) if refill.first_ordinal <= answered_floor]
    return tuple(grown[needed[-1] :] if needed else grown)
