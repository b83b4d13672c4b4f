"""The account of a filtered stream says of the trainer's ledger that it is sound, and of one that hides what was
filtered, what is wrong with it."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.delivery import LogDelivery
from schemas.experiences import Experience, GroupSampled
from schemas.state import Counts
from schemas.tasks import TaskIdentity
from services.account.books import Books
from services.account.fates import seen
from services.account.reckoning import Account, Reckoning
from services.trainer.intake import Intake
from services.trainer.ledger import Ledger
from services.trainer.pipeline.operators import reward_filter, zero_variance_filter
from services.trainer.pipeline.outcome import Experiences, Outcome
from services.trainer.pipeline.pipeline import Pipeline, Stage

RUN, SIZE = "tests/account", 8
STAGES = (
    Stage("reward_filter", reward_filter, {"threshold": 0.0}),
    Stage("zero_variance_filter", zero_variance_filter),
)


def _group(ordinal: int, rewards: list[float], version: int) -> GroupSampled:
    experiences = tuple(
        Experience(
            position=position,
            tokens=np.arange(5, dtype=np.int32),
            prompt_length=2,
            action_mask=np.ones(3, np.uint8),
            logprobs=np.full(3, -1.0, np.float32),
            token_versions=np.full(3, version, np.int32),
            reward=reward,
        )
        for position, reward in enumerate(rewards)
    )
    task = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
    return GroupSampled(run=RUN, task=task, repeat_times=len(rewards), explorer="e", experiences=experiences)


def _trained(messages: list[GroupSampled], pipeline: Pipeline) -> list[Ledger]:
    ledger, kept = Ledger(), []
    intake = Intake(ledger, SIZE, RUN, pipeline=pipeline)
    for sequence, message in enumerate(messages, start=1):
        intake.offer(sequence, message)
        while intake.ready:
            intake.commit(intake.take(), ledger.step + 1)
            kept.append(Ledger.from_json(ledger.to_json()))
    rest = intake.take()
    intake.commit(rest, ledger.step + (rest.owed > 0))
    return [*kept, ledger]


def _account(messages: list[GroupSampled], ledgers: list[Ledger], pipeline: Pipeline, first: int = 1) -> Account:
    books = Books(ledgers[-1], "test", tuple(ledgers))
    reckoning = Reckoning(books, SIZE, first=first, pipeline=pipeline)
    for sequence, message in list(enumerate(messages, start=1))[first - 1 :]:
        reckoning.take(seen(LogDelivery(message, None, sequence, "subject", 0.0, b""), RUN))
    return reckoning.close(len(messages))


REWARDS = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=4, max_size=4)
STREAM = st.lists(st.tuples(st.integers(0, 19), REWARDS, st.integers(0, 3)), min_size=1, max_size=30)
PIPELINES = st.builds(
    Pipeline, st.sampled_from([(), STAGES[:1], STAGES]), st.sampled_from([None, 0, 2]), st.sampled_from([0, 1, 10])
)


@settings(max_examples=50, deadline=None)
@given(stream=STREAM, pipeline=PIPELINES, data=st.data())
def test_the_account_of_any_filtered_stream_balances(stream, pipeline, data) -> None:
    messages = [_group(*each) for each in stream]
    ledgers = _trained(messages, pipeline)
    account = _account(messages, ledgers, pipeline)
    assert account.is_sound, account.disagreements
    assert account.notes == ()
    found = account.experiences()
    assert (found["lost"], found["twice"], found["waiting"]) == (0, 0, 0)
    filtered = sum(found["filtered"].values())
    assert found["published"] == found["trained"] + filtered + found["duplicates"] == 4 * len(stream)
    assert sum(account.staleness.values()) == 3 * found["trained"]
    assert account.explorers["e"].filtered == filtered
    kept = data.draw(st.sampled_from(ledgers))  # what this checkpoint holds has been freed since
    later = _account(messages, ledgers[ledgers.index(kept) :], pipeline, first=kept.sequences.floor)
    assert later.is_sound, later.disagreements
    assert later.experiences() == found


@pytest.fixture
def filtered() -> tuple[list[GroupSampled], list[Ledger]]:
    rewards = [[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, -1.0, 1.0], [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
    messages = [_group(ordinal, each, 0) for ordinal, each in enumerate(rewards)]
    return messages, _trained(messages, Pipeline(STAGES))


def _with(ledgers: list[Ledger], **counts: object) -> list[Ledger]:
    changed = copy.deepcopy(ledgers[-1])
    changed.counts = Counts.model_validate({**changed.counts.model_dump(), **counts})
    return [changed]


def test_a_ledger_that_hides_what_was_filtered_is_found_out(filtered) -> None:
    messages, ledgers = filtered
    assert ledgers[-1].counts.filtered == {"zero_variance_filter": 4, "reward_filter": 1}
    for counts, lost, twice, words in (
        ({"filtered": {"zero_variance_filter": 4}}, 1, 0, "filtered: the ledger counts"),
        ({"trained": 12, "filtered": {"zero_variance_filter": 4}}, 0, 0, "trained: the ledger counts 12"),
        ({"trained": 12}, 0, 1, "trained: the ledger counts 12, the stream makes 11"),
    ):
        account = _account(messages, _with(ledgers, **counts), Pipeline(STAGES))
        assert not account.is_sound
        assert (account.lost, account.twice) == (lost, twice)
        assert any(line.startswith(words) for line in account.disagreements), account.disagreements


def test_an_operator_that_cannot_work_on_a_waiting_answer_is_no_matter_of_the_account(filtered) -> None:
    messages, ledgers = filtered

    def fails_on_nine(experiences: Experiences) -> Outcome:
        return Outcome(experiences) if all(each.reward != 9.0 for each in experiences) else 1 / 0

    waiting = _group(4, [9.0, 9.0, 9.0, 9.0], 1)
    account = _account([*messages, waiting], ledgers, Pipeline((*STAGES, Stage("mine", fails_on_nine))))
    assert account.is_sound, account.disagreements
    assert (account.waiting, account.lost, account.explorers["e"].waiting) == (4, 0, 4)


def test_an_account_by_another_pipeline_disagrees_and_says_where_the_batches_part(filtered) -> None:
    messages, ledgers = filtered
    account = _account(messages, ledgers, Pipeline())
    assert (account.lost, account.twice, account.is_sound) == (0, 0, False)
    assert any(line.startswith("filtered: the ledger counts") for line in account.disagreements)
    assert any("has buffer.train_batch_size changed?" in note for note in account.notes)
