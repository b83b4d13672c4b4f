"""The account says of a sound ledger that nothing is lost or twice, and of any other what is wrong with it."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.experiences import GroupSampled, TaskAbandoned
from services.trainer.ledger import Ledger

GROUP = 4
BATCH = 8

EVENTS = st.lists(
    st.tuples(st.sampled_from(["group", "group", "group", "abandoned", "garbage", "refused"]), st.integers(0, 9)),
    max_size=40,
)


def _filled(stream: Any, events: list[tuple[str, int]]) -> Any:
    made = stream()
    for kind, ordinal in events:
        if kind == "garbage":
            made.garbage()
        elif kind == "abandoned":
            made.abandoned(ordinal)
        else:
            made.group(ordinal, is_refused=kind == "refused")
    return made


def _by_force(made: Any, ledger: Ledger) -> dict[str, Any]:
    """The counts of what a ledger holds, by looking at all earlier messages for each."""
    counts = {
        "published": 0,
        "trained": 0,
        "duplicates": 0,
        "quarantined": 0,
        "withheld": 0,
        "abandoned": 0,
        "waiting": 0,
    }
    usable = {s: m for s, m in enumerate(made.messages, start=1) if m is not None and s not in made.refused}
    for sequence, message in enumerate(made.messages, start=1):
        size = len(message.experiences) if isinstance(message, GroupSampled) else 0
        counts["published"] += size
        if sequence not in ledger.sequences:
            counts["waiting"] += size
        elif sequence not in usable:
            counts["quarantined"] += 1
            counts["withheld"] += size
        else:
            same = [
                (s, m) for s, m in usable.items() if m.task.ordinal == message.task.ordinal and s in ledger.sequences
            ]
            groups = [s for s, m in same if isinstance(m, GroupSampled)]
            if isinstance(message, TaskAbandoned):
                counts["abandoned"] += GROUP if not groups and sequence == same[0][0] else 0
            elif sequence == groups[0]:
                counts["trained"] += size
            else:
                counts["duplicates"] += size
    return counts


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, steps=st.integers(0, 12), is_restarted=st.booleans())
def test_the_account_of_any_stream_equals_one_made_by_force(stream, events, steps, is_restarted) -> None:
    made = _filled(stream, events)
    ledgers = made.trained(steps)
    if is_restarted and ledgers:
        ledgers += made.trained(steps + 2, ledgers[-1])
    account = made.account(ledgers)
    assert account.is_sound, account.disagreements
    assert (account.lost, account.twice) == (0, 0)
    found = account.experiences()
    counts = _by_force(made, ledgers[-1] if ledgers else Ledger())
    assert found["filtered"].get("abandoned", 0) == counts.pop("abandoned")
    assert {name: found[name] for name in counts} == counts
    assert found["published"] == sum(found[name] for name in ("trained", "duplicates", "withheld", "waiting"))
    assert account.notes == ()


@settings(max_examples=80, deadline=None)
@given(events=EVENTS, end=st.integers(0, 40), keeps_all=st.booleans())
def test_a_run_that_ended_and_went_on_is_sound_whatever_its_last_batch_held(stream, events, end, keeps_all) -> None:
    made = _filled(stream, events)
    ended = made.trained(end=end, is_over=True)
    longer = made.trained(ledger=ended[-1], is_over=True)
    account = made.account(ended + longer if keeps_all else longer)
    assert account.is_sound, account.disagreements
    assert account.waiting == 0
    assert account.notes == ()


@settings(max_examples=80, deadline=None)
@given(events=EVENTS, kept_from=st.integers(0, 12), freed=st.integers(0, 40))
def test_a_stream_whose_beginning_was_freed_has_the_same_counts(stream, events, kept_from, freed) -> None:
    made = _filled(stream, events)
    ledgers = made.trained()
    whole = made.account(ledgers)
    kept = ledgers[min(kept_from, len(ledgers) - 1) :] if ledgers else []
    first = 1 + min(freed, ledgers[-1].sequences.floor - 1 if ledgers else 0)
    account = made.account(kept, first=first)
    assert account.is_sound, account.disagreements
    assert account.tally.counts() == whole.tally.counts()
    assert account.waiting == whole.waiting
    assert account.tasks == whole.tasks
    if first > 1:
        assert any("has been freed" in note for note in account.notes)


def _ledger_of(stream: Any) -> tuple[Any, Ledger]:
    made = stream()
    for ordinal in range(6):
        made.group(ordinal)
    made.group(2).group(6).garbage().abandoned(7)
    return made, made.trained()[-1]


def _without_ordinal(ledger: Ledger, ordinal: int) -> None:
    numbers = ledger.ordinals
    numbers.above |= set(range(ordinal + 1, numbers.floor))
    numbers.floor = ordinal


def test_a_task_missing_from_the_ledger_is_lost_and_named(stream) -> None:
    made, ledger = _ledger_of(stream)
    _without_ordinal(ledger, 3)
    account = made.account([ledger])
    assert (account.lost, account.twice) == (GROUP, 0)
    assert account.disagreements == (
        "task 3, answered at sequence 4 (4 experiences): in the ledger by sequence but not by task",
    )


def test_a_task_that_the_ledger_made_up_is_named_and_its_answer_lost(stream) -> None:
    made, ledger = _ledger_of(stream)
    made.group(9)
    ledger.ordinals.above.add(9)
    account = made.account([ledger])
    assert account.lost == GROUP
    assert account.disagreements == ("task 9: in the ledger, and no message that it holds answers it",)


def test_experiences_counted_twice_are_found_and_the_suspects_named(stream) -> None:
    made, ledger = _ledger_of(stream)
    counts = ledger.counts
    ledger.counts = counts.model_copy(update={"trained": counts.trained + GROUP, "duplicates": 0})
    account = made.account([ledger])
    assert (account.lost, account.twice) == (0, GROUP)
    assert "task 2, at 3, 7: answered more than once" in "\n".join(account.disagreements)


def test_experiences_that_the_ledger_did_not_count_are_lost(stream) -> None:
    made, ledger = _ledger_of(stream)
    ledger.counts = ledger.counts.model_copy(update={"trained": ledger.counts.trained - GROUP})
    account = made.account([ledger])
    assert account.lost == GROUP
    assert account.disagreements == ("trained: the ledger counts 24, the stream makes 28",)


def test_a_message_that_was_passed_over_is_named(stream) -> None:
    made, ledger = _ledger_of(stream)
    ledger.sequences.above |= set(range(6, ledger.sequences.floor))
    ledger.sequences.floor = 5
    account = made.account([ledger])
    assert not account.is_sound
    assert (
        f"sequence 5: not in the ledger, though {ledger.sequences.floor + len(ledger.sequences.above)} after it is"
        in (account.disagreements)
    )


def test_messages_freed_before_any_ledger_held_them_are_lost(stream) -> None:
    made, ledger = _ledger_of(stream)
    made.group(8).group(10)
    first = ledger.sequences.floor + 2
    account = made.account([ledger], first=first)
    assert account.lost == 2
    assert f"sequence {first - 1}: gone from the stream, and in no ledger" in account.disagreements


def test_a_stream_that_ends_before_the_ledger_is_another_stream(stream) -> None:
    made, ledger = _ledger_of(stream)
    shorter = copy.copy(made)
    shorter.messages = made.messages[:4]
    assert any("it is not this run's stream" in words for words in shorter.account([ledger]).disagreements)


@pytest.mark.parametrize("kind", ["sequences", "ordinals"])
def test_a_number_that_stands_twice_in_the_file_is_named(stream, kind) -> None:
    made, ledger = _ledger_of(stream)
    account = made.account([ledger], repeated={kind: [5]})
    assert f"{kind[:-1]} 5: more than once in the ledger" in account.disagreements
    assert account.twice == (GROUP if kind == "ordinals" else 0)


def test_an_abandoned_task_that_is_answered_later_is_trained_and_not_filtered(stream) -> None:
    made = stream().group(0).abandoned(1).group(2).group(1).group(3).group(4)
    account = made.account(made.trained(), released=6)
    assert account.is_sound, account.disagreements
    assert account.experiences()["filtered"] == {}
    assert (account.tasks.answered, account.tasks.abandoned, account.tasks.waiting) == (5, 0, 1)


def test_staleness_is_the_step_less_one_less_the_version_of_each_token(stream) -> None:
    made = stream().group(0, version=0).group(1, version=0).group(2, version=1).group(3, version=0)
    account = made.account(made.trained())
    assert account.staleness == {0: 36, 1: 12}


def test_steps_that_do_not_come_out_are_told_and_cost_no_soundness(stream) -> None:
    made, ledger = _ledger_of(stream)
    ledger.step += 3
    account = made.account([ledger])
    assert account.is_sound
    assert any("has buffer.train_batch_size changed?" in note for note in account.notes)


def test_tasks_in_neither_queue_nor_stream_are_missing(stream) -> None:
    made = stream().group(0).group(1, is_refused=True).garbage()
    account = made.account([], released=5)
    assert (account.tasks.waiting, account.tasks.quarantined, account.tasks.missing) == (4, 1, 3)
