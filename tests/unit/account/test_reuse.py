"""The account knows what the declared rule trains on again: that is no duplicate, and any other use is one too many."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.state import TrainProgress
from schemas.weights import WeightVersion
from services.account.books import open_books
from services.config.reuse import ReuseRule
from services.trainer.intake import Intake
from services.trainer.ledger import Ledger

RUN, GROUP, BATCH = "tests/account", 4, 8
RULE = ReuseRule(train_batch_size=16, capacity=24, use_count_limit=3)


def _trained(
    made: Any, rules: list[ReuseRule | None], ledger: Ledger | None = None, steps: int | None = None
) -> list[Ledger]:
    """The ledger after each step, by a trainer that is started again for each rule, in the middle of what is there."""
    kept: list[Ledger] = []
    ledger = ledger or Ledger()
    for place, rule in enumerate(rules):
        intake = Intake(ledger, BATCH, RUN, reuse=rule)
        for sequence in intake.lacking:
            intake.restore(sequence, made.messages[sequence - 1])
        for sequence, message in enumerate(made.messages, start=1):
            intake.offer(sequence, message)
        batches = intake.ready if place == len(rules) - 1 else intake.ready // 2
        for _ in range(batches):
            intake.commit(intake.take(), ledger.step + 1)
            kept.append(Ledger.from_json(ledger.to_json()))
        ledger = Ledger.from_json(ledger.to_json())
    return kept


@pytest.fixture
def made(stream) -> Any:
    found = stream()
    for ordinal in range(12):
        found.group(ordinal, version=ordinal // 2)
    return found.garbage().abandoned(12).group(13, version=5)


def test_what_the_rule_trains_on_again_is_no_duplicate(made) -> None:
    ledgers = _trained(made, [RULE])
    account = made.account(ledgers)
    assert account.is_sound, account.disagreements
    assert (account.lost, account.twice, account.tally.trained) == (0, 0, 52)
    assert (account.tally.reused, account.tally.tokens_reused) == (52, 156)
    assert account.reuse.uses == {2: 48, 3: 4}
    assert account.reuse.staleness == {1: 144, 2: 12}
    assert account.reuse.held == ledgers[-1].reuse.pool.experiences
    assert account.staleness == {0: 144, 1: 12}


def test_a_use_that_the_rule_does_not_give_is_trained_twice(made) -> None:
    ledgers = _trained(made, [RULE])
    ledger = ledgers[-1]
    counts = ledger.counts
    ledger.counts = counts.model_copy(update={"reused": counts.reused + GROUP, "tokens_reused": counts.tokens_reused})
    account = made.account(ledgers)
    assert (account.lost, account.twice) == (0, GROUP)
    assert account.disagreements == ("reused: the ledger counts 56, the stream makes 52",)


def test_a_group_that_the_ledger_has_used_more_often_is_named(made) -> None:
    ledgers = _trained(made, [RULE])
    pool = ledgers[-1].reuse.pool
    group = pool.groups[0]
    wrong = replace(pool, groups=(replace(group, uses=group.uses + 1), *pool.groups[1:]))
    ledgers[-1].reuse = replace(ledgers[-1].reuse, pool=wrong)
    account = made.account(ledgers)
    assert account.disagreements == (
        f"sequence {group.sequence} (task {group.ordinal}), at step 7 used {group.uses + 1} times by the ledger and "
        f"{group.uses} times by the stream: the rule of reuse does not say so",
    )


def test_a_pool_of_which_a_group_is_missing_is_named(made) -> None:
    ledgers = _trained(made, [RULE])
    pool = ledgers[-1].reuse.pool
    ledgers[-1].reuse = replace(ledgers[-1].reuse, pool=replace(pool, groups=pool.groups[1:]))
    assert any("not to be used again by the ledger" in line for line in made.account(ledgers).disagreements)


def test_the_streams_time_begins_with_the_rule(stream) -> None:
    made = stream()
    for ordinal, finished_at in enumerate([0.0, 1000.0, 10.0, 20.0, 80.0, 81.0, 150.0, 151.0]):
        made.group(ordinal, finished_at=finished_at)
    ledgers = _trained(made, [None, replace(RULE, cooldown_s=60.0)])
    account = made.account(ledgers[-1:])
    assert ledgers[-1].reuse.pool.time == 151.0
    assert account.is_sound, account.disagreements
    assert account.tally.reused == 8


def test_without_a_directory_the_trainers_word_for_reuse_is_taken(made, tmp_path) -> None:
    ledger = _trained(made, [RULE])[-1]
    said = TrainProgress(
        weights=WeightVersion(), step=ledger.step, sequence_floor=ledger.sequences.floor, counts=ledger.counts
    )
    books = open_books(tmp_path / "elsewhere", (), said)
    account = made.account([books.ledger], knows_ordinals=False)
    assert account.is_sound, account.disagreements
    assert account.tally.reused == 52


EVENTS = st.lists(
    st.tuples(st.sampled_from(["group"] * 4 + ["abandoned", "garbage"]), st.integers(0, 11), st.integers(0, 4)),
    max_size=40,
)
RULES = st.lists(
    st.none()
    | st.builds(
        ReuseRule,
        train_batch_size=st.sampled_from([12, 16]),
        capacity=st.sampled_from([8, 40]),
        decay=st.sampled_from([0.5, 2.0]),
        use_count_limit=st.sampled_from([0, 3]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=80, deadline=None)
@given(events=EVENTS, rules=RULES, kept_from=st.integers(0, 12), freed=st.integers(0, 40))
def test_the_account_of_any_stream_and_any_rules_is_sound_also_where_its_beginning_was_freed(
    stream, events, rules, kept_from, freed
) -> None:
    made = stream()
    for kind, ordinal, version in events:
        {"group": lambda o, v: made.group(o, version=v), "abandoned": lambda o, v: made.abandoned(o)}.get(
            kind, lambda o, v: made.garbage()
        )(ordinal, version)
    ledgers = _trained(made, rules)
    whole = made.account(ledgers)
    assert whole.is_sound, whole.disagreements
    kept = ledgers[min(kept_from, len(ledgers) - 1) :] if ledgers else []
    first = 1 + min(freed, kept[0].needed - 1 if kept else 0)
    account = made.account(kept, first=first)
    assert account.is_sound, account.disagreements
    assert account.tally.counts() == whole.tally.counts()
    assert account.notes == () or first > 1
