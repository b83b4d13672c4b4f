"""Batches that train on experiences again are a function of the stream's order, the ledger and the rule, and every use
is in the ledger."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.experiences import GroupSampled
from services.config.reuse import ReuseRule, standard_normal
from services.trainer.intake import Batch, Intake
from services.trainer.ledger import Ledger
from services.trainer.pipeline.operators import reward_filter
from services.trainer.pipeline.pipeline import Pipeline, Stage
from services.trainer.reuse.reserve import ReserveLost

RUN, FRESH, GROUP = "tests/reuse", 4, 2
LEAST_REWARD = 0.5
PIPELINE = Pipeline((Stage("reward_filter", reward_filter, {"threshold": LEAST_REWARD}),), refill=1)


def _rule(**changes: Any) -> ReuseRule:
    return ReuseRule(**{"train_batch_size": 8, "capacity": 100, **changes})


def _ordinals(batch: Batch) -> list[int]:
    return [group.task.ordinal for group in batch.groups]


def test_a_step_never_waits_for_what_may_be_used_again(group: Callable[..., GroupSampled]) -> None:
    intake = Intake(Ledger(), FRESH, RUN, reuse=_rule())
    for sequence in range(1, 7):
        intake.offer(sequence, group(sequence, version=(sequence - 1) // 2))
    assert (intake.ready, intake.steps) == (3, 3)
    batches = [intake.take() for _ in range(3)]
    assert [_ordinals(batch) for batch in batches] == [[1, 2], [1, 2, 3, 4], [3, 4, 5, 6]]
    assert [batch.uses for batch in batches] == [[1] * 4, [2] * 4 + [1] * 4, [2] * 4 + [1] * 4]
    assert [[entry.sequence for entry in batch.entries] for batch in batches] == [[1, 2], [3, 4], [5, 6]]


def test_what_is_used_again_fills_the_place_of_what_was_abandoned(group, abandoned) -> None:
    intake = Intake(Ledger(), FRESH, RUN, reuse=_rule(train_batch_size=6))
    for sequence, message in enumerate([group(1), group(2), group(3), abandoned(4)], start=1):
        intake.offer(sequence, message)
    assert [_ordinals(intake.take()) for _ in range(2)] == [[1, 2], [1, 2, 3]]


def test_the_ledger_declares_the_rule_and_counts_every_use(group) -> None:
    ledger, rule = Ledger(), _rule(use_count_limit=2)
    intake = Intake(ledger, FRESH, RUN, reuse=rule)
    for sequence in range(1, 7):
        intake.offer(sequence, group(sequence, at=float(sequence)))
    for step in (1, 2, 3):
        intake.commit(intake.take(), step)
    counts = ledger.counts
    assert (counts.trained, counts.tokens_trained, counts.reused, counts.tokens_reused) == (12, 36, 8, 24)
    assert [(since.from_step, since.rule) for since in ledger.reuse.rules] == [(1, rule)]
    assert [(g.sequence, g.uses, g.used_at) for g in ledger.reuse.pool.groups] == [(5, 1, 6.0), (6, 1, 6.0)]
    assert (ledger.sequences.floor, ledger.needed) == (7, 5)
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_another_rule_is_declared_from_its_first_step_and_none_gives_up_the_pool(group) -> None:
    ledger = Ledger()
    for step, rule in ((1, _rule()), (2, _rule(decay=1.0)), (3, None), (4, None)):
        intake = Intake(ledger, FRESH, RUN, reuse=rule)
        for sequence in intake.lacking:
            intake.restore(sequence, group(sequence))
        for sequence in (2 * step - 1, 2 * step):
            intake.offer(sequence, group(sequence))
        intake.commit(intake.take(), step)
    rules = ledger.reuse.rules
    assert [(since.from_step, since.rule.decay if since.rule else None) for since in rules] == [
        *((1, 2.0), (2, 1.0), (3, None)),
    ]
    assert (ledger.reuse.pool.groups, ledger.needed, ledger.counts.reused) == ((), 9, 4)
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_a_ledger_from_before_reuse_has_none_and_one_without_reuse_does_not_speak_of_it(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, FRESH, RUN)
    for sequence in (1, 2):
        intake.offer(sequence, group(sequence))
    intake.commit(intake.take(), 1)
    assert '"reuse"' not in ledger.to_json()
    assert Ledger.from_json(ledger.to_json()).reuse.rules == ()
    assert ledger.needed == 3


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0, 1.0)])
def test_a_group_of_which_the_pipeline_leaves_something_else_is_not_used_again(group, rewards) -> None:
    ledger = Ledger()
    first = Intake(ledger, GROUP, RUN, pipeline=PIPELINE, reuse=_rule())
    for sequence in (1, 2):
        first.offer(sequence, group(sequence))
    first.commit(first.take(), 1)
    again = Intake(Ledger.from_json(ledger.to_json()), GROUP, RUN, pipeline=PIPELINE, reuse=_rule())
    assert again.lacking == [1, 2]
    again.restore(1, group(1))
    with pytest.raises(ReserveLost, match="of the group at sequence 2, 1 experiences were trained on"):
        again.restore(2, group(2, rewards=rewards))
    assert again.lacking == [2]


def test_a_batch_that_makes_no_step_leaves_the_time_of_the_stream_as_it_was(group) -> None:
    """So that a trainer that goes on, and has not heard it, knows no other time than one that replays the stream."""
    right, wrong, pipeline = (1.0, 1.0), (0.0, 0.0), Pipeline(PIPELINE.stages, refill=9)
    messages = [group(1, at=1.0, rewards=right), group(2, at=9.0, rewards=wrong), group(3, at=3.0, rewards=right)]
    ledger = Ledger()
    first = Intake(ledger, GROUP, RUN, pipeline=pipeline, reuse=_rule())
    for sequence in (1, 2):
        first.offer(sequence, messages[sequence - 1])
    first.commit(first.take(), 1)
    rest = first.take()
    assert (rest.owed, len(rest.entries)) == (0, 1)
    first.commit(rest, 1)
    gone_on = Intake(Ledger.from_json(ledger.to_json()), GROUP, RUN, pipeline=pipeline, reuse=_rule())
    gone_on.restore(1, messages[0])
    replayed = Intake(Ledger(), GROUP, RUN, ledger.short_batches, pipeline, _rule())
    for sequence, message in enumerate(messages, start=1):
        gone_on.offer(sequence, message)
        replayed.offer(sequence, message)
    (made,) = [gone_on.take().drawn for _ in range(gone_on.ready)]
    assert [replayed.take().drawn for _ in range(replayed.ready)][-1] == made
    assert made.pool.time == 3.0


def test_of_a_group_that_was_stale_in_part_the_rest_is_used_again(group) -> None:
    pipeline, old = Pipeline(max_staleness=2), group(9).experiences[0].model_copy(update={"position": 1})
    ledger = Ledger(step=3)
    mixed = group(1, version=3)
    mixed = mixed.model_copy(update={"experiences": (mixed.experiences[0], old)})
    first = Intake(ledger, GROUP, RUN, pipeline=pipeline, reuse=_rule(max_staleness=2.0))
    for sequence, message in enumerate([mixed, group(2, version=3)], start=1):
        first.offer(sequence, message)
    first.commit(first.take(), 4)
    assert [(each.version, each.experiences) for each in ledger.reuse.pool.groups] == [(3, 1), (3, 2)]
    again = Intake(Ledger.from_json(ledger.to_json()), GROUP, RUN, pipeline=pipeline, reuse=_rule(max_staleness=2.0))
    again.restore(1, mixed)
    again.restore(2, group(2, version=3))
    again.offer(3, group(3, version=4))
    assert [[each.position for each in found.experiences] for found in again.take().groups] == [[0], [0, 1], [0, 1]]


REWARDS = st.sampled_from([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
KINDS = st.sampled_from(["group"] * 6 + ["abandoned", "garbage"])
STREAM = st.lists(
    st.tuples(KINDS, st.integers(0, 29), st.integers(0, 6), st.floats(0, 50) | st.just(float("inf")), REWARDS),
    max_size=50,
)
RULES = st.builds(
    ReuseRule,
    train_batch_size=st.sampled_from([6, 8, 12]),
    capacity=st.sampled_from([3, 8, 100]),
    cooldown_s=st.sampled_from([0.0, 10.0]),
    decay=st.sampled_from([0.0, 0.5, 2.0]),
    use_count_limit=st.sampled_from([0, 2, 3]),
    sigma=st.sampled_from([0.0, 1.5]),
    max_staleness=st.sampled_from([None, 3.0]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(stream=STREAM, rule=RULES, data=st.data())
def test_any_timing_and_any_deaths_make_the_same_batches_and_those_of_the_rule(
    group, abandoned, stream, rule, data
) -> None:
    messages = [_message(group, abandoned, *each) for each in stream]
    pipeline = Pipeline(PIPELINE.stages, rule.max_staleness, refill=1)
    ledger = Ledger()
    whole = _made(ledger, messages, pipeline, rule, len(messages))
    died_ledger, died = Ledger(), []
    while len(died) < len(whole):
        steps, portion = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
        died += _made(died_ledger, messages, pipeline, rule, steps, portion)
        died_ledger = Ledger.from_json(died_ledger.to_json())
    assert (died, died_ledger) == (whole, ledger)
    assert [[entry[:2] for entry in batch] for batch in whole] == _by_hand(messages, ledger, rule)
    uses = Counter((ordinal, position) for batch in whole for ordinal, _, positions in batch for position in positions)
    assert sum(uses.values()) - len(uses) == ledger.counts.reused
    assert len(uses) == ledger.counts.trained
    assert max(uses.values(), default=0) <= (rule.use_count_limit or len(whole))
    assert ledger.reuse.pool.experiences <= rule.capacity


def _message(group, abandoned, kind: str, ordinal: int, version: int, at: float, rewards: tuple[float, ...]) -> Any:
    if kind == "group":
        return group(ordinal, version=version, at=at, rewards=rewards)
    return abandoned(ordinal, at=at) if kind == "abandoned" else None


Shown = list[list[tuple[int, int, tuple[int, ...]]]]


def _made(
    ledger: Ledger, messages: list[Any], pipeline: Pipeline, rule: ReuseRule, steps: int, portion: int | None = None
) -> Shown:
    """(ordinal, use, positions) of the groups of the next batches, at most `steps`, as a trainer makes them that begins
    from `ledger` and reads `portion` messages before it looks for batches."""
    intake = Intake(ledger, FRESH, RUN, pipeline=pipeline, reuse=rule)
    for sequence in intake.lacking:
        intake.restore(sequence, messages[sequence - 1])
    made: Shown = []
    rest = list(enumerate(messages, start=1))[ledger.sequences.floor - 1 :]
    while rest or intake.ready:
        for sequence, message in rest[:portion]:
            intake.offer(sequence, message)
        rest = rest[portion:] if portion else []
        while intake.ready and len(made) < steps:
            batch = intake.take()
            intake.commit(batch, ledger.step + 1)
            made.append(_shown(batch))
        if len(made) == steps:
            break
    return made


def _shown(batch: Batch) -> list[tuple[int, int, tuple[int, ...]]]:
    shown, uses = [], batch.uses
    for group in batch.groups:
        shown.append((group.task.ordinal, uses[0], tuple(each.position for each in group.experiences)))
        uses = uses[len(group.experiences) :]
    return shown


def _by_hand(messages: list[Any], ledger: Ledger, rule: ReuseRule) -> list[list[tuple[int, int]]]:
    """(ordinal, use) of the groups of each batch of what the ledger holds."""
    hand = _Hand(rule)
    for sequence, message in enumerate(messages[: ledger.sequences.floor - 1], start=1):
        hand.take(sequence, message)
    return hand.batches


class _Hand:
    """Works the batches out as docs/guarantees.md says it."""

    def __init__(self, rule: ReuseRule) -> None:
        self._rule = rule
        self._seen: set[int] = set()
        self._given_up: set[int] = set()
        self._pool: dict[int, dict[str, Any]] = {}
        self._fresh: dict[int, dict[str, Any]] = {}
        self._owed = self._made_up = 0
        self._time = 0.0
        self.batches: list[list[tuple[int, int]]] = []

    def take(self, sequence: int, message: Any) -> None:
        is_answer = isinstance(message, GroupSampled)
        ordinal = None if message is None else message.task.ordinal
        if ordinal is None or (ordinal in self._seen and not (is_answer and ordinal in self._given_up)):
            return
        self._seen.add(ordinal)
        at = message.finished_at if is_answer else message.abandoned_at
        self._time = max(self._time, at) if at < float("inf") else self._time
        if is_answer:
            self._given_up.discard(ordinal)
            self._answer(sequence, message)
        else:
            self._given_up.add(ordinal)
            self._owed += GROUP
        if self._owed >= FRESH:
            self._close()

    def _answer(self, sequence: int, message: GroupSampled) -> None:
        version = int(message.experiences[0].token_versions[0])
        is_old = self._is_old(version, len(self.batches) + 1)
        kept = [each for each in message.experiences if each.reward >= LEAST_REWARD and not is_old]
        made_up = min(GROUP - len(kept), FRESH - self._made_up)
        self._made_up += made_up
        self._owed += GROUP - made_up
        if kept:
            about = {"ordinal": message.task.ordinal, "version": version, "size": len(kept), "uses": 1}
            self._fresh[sequence] = about

    def _close(self) -> None:
        room = self._rule.train_batch_size - self._size(self._fresh)
        batch = {}
        for place in sorted(self._pool, key=lambda place: (-self._priority(place), place)):
            each = self._pool[place]
            if self._time - each["at"] >= self._rule.cooldown_s and each["size"] <= room:
                room -= each["size"]
                each |= {"uses": each["uses"] + 1, "at": self._time}
                batch[place] = each
        for place, each in self._fresh.items():
            batch[place] = self._pool[place] = each | {"at": self._time}
        self.batches.append([(batch[place]["ordinal"], batch[place]["uses"]) for place in sorted(batch)])
        self._leave()
        self._fresh, self._owed, self._made_up = {}, 0, 0

    def _leave(self) -> None:
        limit, step = self._rule.use_count_limit, len(self.batches)
        for place, each in [*self._pool.items()]:
            if self._is_old(each["version"], step + 1) or 0 < limit <= each["uses"]:
                del self._pool[place]
        while self._size(self._pool) > self._rule.capacity:
            del self._pool[min(self._pool, key=lambda place: (self._priority(place), place))]

    def _is_old(self, version: int, step: int) -> bool:
        most = self._rule.max_staleness
        return most is not None and step - 1 - version > most

    def _priority(self, place: int) -> float:
        each, rule = self._pool[place], self._rule
        noise = rule.sigma * standard_normal(each["ordinal"], each["uses"]) if rule.sigma else 0.0
        return each["version"] - rule.decay * each["uses"] + noise

    def _size(self, groups: dict[int, dict[str, Any]]) -> int:
        return sum(each["size"] for each in groups.values())
