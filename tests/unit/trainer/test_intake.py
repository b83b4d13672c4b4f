"""Batches are a function of the stream's order and the ledger; nothing is trained twice, nothing stalls."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.trainer.intake import Intake
from services.trainer.ledger import Ledger
from services.trainer.pipeline.outcome import Experiences, OperatorFailed, Outcome
from services.trainer.pipeline.pipeline import Pipeline, Stage

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


def test_what_an_operator_cannot_work_on_is_not_answered(group) -> None:
    def picky(experiences: Experiences) -> Outcome:
        raise KeyError("quality")

    intake = Intake(Ledger(), 8, RUN, pipeline=Pipeline((Stage("picky", picky),)))
    with pytest.raises(OperatorFailed, match=r"operator 'picky' raises KeyError: 'quality' .*sequence 1 of"):
        intake.offer(1, group(0))
    assert (len(intake.answered), intake.gathered) == (0, 0)


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


def test_an_answer_to_an_abandoned_task_is_trained_once_and_no_longer_filtered(group, abandoned) -> None:
    ledger = Ledger()
    intake = Intake(ledger, 4, RUN)
    intake.offer(1, abandoned(0))
    intake.commit(intake.take(), 1)
    assert (ledger.counts.filtered, ledger.abandoned) == ({"abandoned": 4}, {0: 4})
    resumed = Intake(Ledger.from_json(ledger.to_json()), 4, RUN)
    resumed.offer(2, group(0))
    resumed.offer(3, group(0))
    batch = resumed.take()
    assert [entry.fate for entry in (*batch.entries, *resumed.take().entries)] == ["trained", "duplicate"]
    ledger.record(batch.entries)
    assert (ledger.counts.trained, ledger.counts.filtered, ledger.abandoned) == (4, {}, {})


def test_a_batch_that_was_closed_short_is_closed_there_again(group) -> None:
    ledger = Ledger()
    first = Intake(ledger, 8, RUN)
    first.offer(1, group(0))
    first.commit(first.take(), 1)
    assert ledger.short_batches == [1]
    again = Intake(Ledger(), 8, RUN, ledger.short_batches)
    for sequence in (1, 2, 3):
        again.offer(sequence, group(sequence))
    assert [len(again.take().groups) for _ in range(2)] == [1, 2]


def test_the_steps_of_the_stream_bound_the_versions_that_can_exist(group) -> None:
    intake = Intake(Ledger(step=5), 8, RUN)
    seen = []
    for sequence in range(1, 6):
        seen.append(intake.steps)
        intake.offer(sequence, group(sequence))
    assert seen == [5, 5, 6, 6, 7]


KINDS = st.sampled_from(["group", "abandoned", "garbage"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(KINDS, st.integers(0, 9)), max_size=30), st.data())
def test_a_trainer_that_dies_anywhere_makes_the_same_batches(group, abandoned, stream, data) -> None:
    make = {"group": group, "abandoned": abandoned, "garbage": lambda ordinal: None}
    messages = [make[kind](ordinal) for kind, ordinal in stream]
    whole = _trained(Ledger(), messages, steps=len(messages))
    ledger = Ledger()
    done = _trained(ledger, messages, steps=data.draw(st.integers(0, len(whole))))
    resumed = Ledger.from_json(ledger.to_json())
    assert done + _trained(resumed, messages, steps=len(messages)) == whole


def _trained(ledger: Ledger, messages: list, steps: int) -> list[list[tuple[int, int | None, str]]]:
    """The entries of each batch, of the `steps` first that close; the stream is read from the ledger's floor."""
    intake = Intake(ledger, 8, RUN)
    start = ledger.sequences.floor
    for sequence, message in list(enumerate(messages, start=1))[start - 1 :]:
        intake.offer(sequence, message)
    batches = []
    while intake.ready and len(batches) < steps:
        batch = intake.take()
        intake.commit(batch, ledger.step + 1)
        batches.append([(entry.sequence, entry.ordinal, entry.fate) for entry in batch.entries])
    return batches
