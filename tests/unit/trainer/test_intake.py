"""Batches are a function of the stream's order and the ledger; nothing is trained twice, nothing stalls."""

from services.trainer.intake import Intake
from services.trainer.ledger import Ledger

RUN = "tests/trainer"


def test_a_batch_closes_at_train_batch_size_in_stream_order(group) -> None:
    intake = Intake(Ledger(), 8, RUN)
    for sequence, ordinal in enumerate((3, 1, 2), start=1):
        intake.offer(sequence, group(ordinal))
    assert intake.ready == 1
    batch = intake.take()
    assert [found.task.ordinal for found in batch.groups] == [3, 1]
    assert [entry.sequence for entry in batch.entries] == [1, 2]


def test_a_group_published_twice_is_trained_once(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, 8, RUN)
    for sequence, ordinal in enumerate((0, 0, 1), start=1):
        intake.offer(sequence, group(ordinal))
    batch = intake.take()
    assert [entry.fate for entry in batch.entries] == ["trained", "duplicate", "trained"]
    intake.commit(batch, 1)
    assert ledger.counts.trained == 8
    assert ledger.counts.duplicates == 4


def test_an_answer_that_comes_again_after_its_step_is_a_duplicate(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, 4, RUN)
    intake.offer(1, group(0))
    intake.commit(intake.take(), 1)
    resumed = Intake(Ledger.from_json(ledger.to_json()), 4, RUN)
    resumed.offer(1, group(0))
    resumed.offer(2, group(0))
    resumed.offer(3, group(1))
    batch = resumed.take()
    assert [(entry.sequence, entry.fate) for entry in batch.entries] == [(2, "duplicate"), (3, "trained")]


def test_an_abandoned_task_counts_for_what_it_owed(group, abandoned) -> None:
    intake = Intake(Ledger(), 8, RUN)
    intake.offer(1, group(0))
    intake.offer(2, abandoned(1))
    assert intake.ready == 1
    batch = intake.take()
    assert len(batch.experiences) == 4
    assert batch.entries[1].fate == "filtered:abandoned"


def test_malformed_and_foreign_messages_enter_the_ledger_as_quarantined(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, 4, RUN)
    intake.offer(1, None)
    intake.offer(2, group(0, run="another/run"))
    intake.offer(3, group(0))
    intake.commit(intake.take(), 1)
    assert ledger.sequences.floor == 4
    assert ledger.counts.quarantined == 2


def test_answered_counts_what_waits_as_well_as_what_is_trained(group) -> None:
    intake = Intake(Ledger(), 8, RUN)
    for sequence, ordinal in enumerate((0, 1, 3), start=1):
        intake.offer(sequence, group(ordinal))
    assert intake.answered.floor == 2
    assert 3 in intake.answered


def test_what_is_left_at_the_end_is_one_smaller_batch(group) -> None:
    intake = Intake(Ledger(), 8, RUN)
    intake.offer(1, group(0))
    assert intake.ready == 0
    assert len(intake.take().experiences) == 4
    assert intake.take().entries == []
