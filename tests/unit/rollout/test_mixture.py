"""Which row comes when, at any ordinal, without memory."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.config import DataSelectorConfig, TasksetConfig
from services.rollout.errors import TasksetError, UnknownName
from services.rollout.mixture import Mixture
from services.rollout.ordering import ORDERS, apportioned, interleaved, order
from services.rollout.tasksets import Taskset

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
SELECTORS = st.sampled_from(sorted(ORDERS))


def mixture(sizes: list[int], selector_type: str = "sequential", seed: int = 42) -> Mixture:
    selector = DataSelectorConfig(selector_type=selector_type, seed=seed)
    tasksets = []
    for number, size in enumerate(sizes):
        config = TasksetConfig(name=f"set{number}", data_selector=selector)
        tasksets.append(Taskset(config.name, config, [{"prompt": str(row)} for row in range(size)], ["prompt"]))
    return Mixture(tasksets)


@given(sizes=SIZES, selector_type=SELECTORS, epoch=st.integers(0, 5), seed=st.integers(0, 2**31))
def test_every_row_comes_once_in_every_epoch(sizes: list[int], selector_type: str, epoch: int, seed: int) -> None:
    mixed = mixture(sizes, selector_type, seed)
    places = [mixed.task_at(ordinal) for ordinal in range(epoch * len(mixed), (epoch + 1) * len(mixed))]
    assert {place.epoch for place in places} == {epoch}
    expected = {(f"set{number}", index) for number, size in enumerate(sizes) for index in range(size)}
    assert len(places) == len(expected)
    assert {(place.taskset.name, place.index) for place in places} == expected


@given(sizes=SIZES, selector_type=SELECTORS, ordinal=st.integers(0, 1000))
def test_a_successor_finds_the_same_place(sizes: list[int], selector_type: str, ordinal: int) -> None:
    first, successor = mixture(sizes, selector_type), mixture(sizes, selector_type)
    left, right = first.task_at(ordinal), successor.task_at(ordinal)
    assert (left.taskset.name, left.epoch, left.index) == (right.taskset.name, right.epoch, right.index)


@given(sizes=SIZES, share=st.floats(0, 1))
def test_every_part_of_an_epoch_is_mixed_in_proportion(sizes: list[int], share: float) -> None:
    which, _ = interleaved(sizes)
    taken = round(share * len(which))
    counts = Counter(which[:taken].tolist())
    for taskset, size in enumerate(sizes):
        assert abs(counts[taskset] - taken * size / sum(sizes)) <= len(sizes)


def test_two_tasksets_alternate_by_size() -> None:
    which, nth = interleaved([2, 4])
    assert which.tolist() == [1, 0, 1, 1, 0, 1]
    assert nth.tolist() == [0, 0, 1, 2, 1, 3]


def test_shuffle_is_trinitys_and_new_each_epoch() -> None:
    shuffle = DataSelectorConfig(selector_type="shuffle", seed=42)
    assert order(8, 0, shuffle).tolist() == np.random.default_rng(42).permutation(8).tolist()
    assert order(8, 1, shuffle).tolist() == np.random.default_rng(43).permutation(8).tolist()


def test_sequential_is_the_order_of_the_rows() -> None:
    assert order(5, 3, DataSelectorConfig()).tolist() == [0, 1, 2, 3, 4]
    assert [mixture([3]).task_at(ordinal).index for ordinal in range(5)] == [0, 1, 2, 0, 1]


def test_random_is_not_shuffle() -> None:
    orders = {name: order(50, 0, DataSelectorConfig(selector_type=name)).tolist() for name in ORDERS}
    assert orders["random"] != orders["shuffle"]
    assert sorted(orders["random"]) == orders["sequential"]


def test_an_unknown_selector_is_refused_at_once() -> None:
    with pytest.raises(UnknownName, match="unknown selector_type 'shufle': did you mean 'shuffle'"):
        mixture([3], "shufle")


def test_two_tasksets_of_one_name_are_refused() -> None:
    taskset = mixture([3]).tasksets[0]
    with pytest.raises(TasksetError, match="2 tasksets have this name: give each its own"):
        Mixture([taskset, taskset])
    with pytest.raises(TasksetError, match="no taskset"):
        Mixture([])


JOINS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), max_size=3)


def joined(
    sizes: list[int], joins: list[tuple[int, int]], epochs: int | None, selector_type: str
) -> tuple[Mixture, int]:
    """A mixture that tasksets of these sizes have joined, each so many tasks after the one before; and the last ordinal
    at which one did."""
    mixed, ordinal = mixture(sizes, selector_type), 0
    for number, (size, later) in enumerate(joins):
        ordinal += later
        newcomer = mixture([1] * (len(sizes) + number) + [size], selector_type).tasksets[-1]
        mixed = mixed.joined(newcomer, ordinal, epochs)
    return mixed, ordinal


@given(sizes=SIZES, joins=JOINS, epochs=st.one_of(st.none(), st.integers(1, 3)), selector_type=SELECTORS)
def test_whoever_joins_every_row_comes_once_in_each_epoch_of_its_taskset(
    sizes: list[int], joins: list[tuple[int, int]], epochs: int | None, selector_type: str
) -> None:
    mixed, last = joined(sizes, joins, epochs, selector_type)
    seen: dict[str, list[tuple[int, int]]] = {}
    for ordinal in range(last + 3 * len(mixed)):
        place = mixed.task_at(ordinal)
        seen.setdefault(place.taskset.name, []).append((place.epoch, place.index))
    for taskset in mixed.tasksets:
        found = seen[taskset.name]
        assert [epoch for epoch, _ in found] == [count // len(taskset) for count in range(len(found))]
        for start in range(0, len(found) - len(taskset) + 1, len(taskset)):
            assert {index for _, index in found[start : start + len(taskset)]} == set(range(len(taskset)))
        assert mixed.consumed(last + 3 * len(mixed))[taskset.name] == len(found)


@given(sizes=SIZES, joins=JOINS, epochs=st.integers(1, 3))
def test_tasksets_that_join_end_their_epochs_together_with_the_others(
    sizes: list[int], joins: list[tuple[int, int]], epochs: int
) -> None:
    within = [(size, later % max(1, epochs * sum(sizes) // (len(joins) + 1))) for size, later in joins]
    mixed, _ = joined(sizes, within, epochs, "sequential")
    assert mixed.consumed(epochs * len(mixed)) == {taskset.name: epochs * len(taskset) for taskset in mixed.tasksets}


@given(sizes=SIZES, joins=JOINS, epochs=st.one_of(st.none(), st.integers(1, 3)))
def test_a_taskset_that_joins_changes_nothing_before_it_and_a_successor_finds_the_same(
    sizes: list[int], joins: list[tuple[int, int]], epochs: int | None
) -> None:
    before, start = joined(sizes, joins[:-1], epochs, "shuffle")
    mixed, last = joined(sizes, joins, epochs, "shuffle")
    successor = Mixture(tuple(reversed(mixed.tasksets)), mixed.segments)
    for ordinal in range(last + len(mixed)):
        place = mixed.task_at(ordinal)
        found = (place.taskset.name, place.epoch, place.index)
        other = successor.task_at(ordinal)
        assert found == (other.taskset.name, other.epoch, other.index)
        if ordinal < last and start <= last:
            earlier = before.task_at(ordinal)
            assert found == (earlier.taskset.name, earlier.epoch, earlier.index)


def test_a_segment_of_a_taskset_that_is_not_there_is_refused() -> None:
    segments = mixture([3, 2]).segments
    with pytest.raises(TasksetError, match="'set1': it is in the run from task 0 on, but not given"):
        Mixture(mixture([3]).tasksets, segments)


def weighted(sizes: list[int], weights: list[float | None]) -> Mixture:
    plain = mixture(sizes).tasksets
    return Mixture(
        [
            Taskset(each.name, each.config.model_copy(update={"weight": weight}), [{}] * len(each), ["prompt"])
            for each, weight in zip(plain, weights, strict=True)
        ]
    )


def test_weights_decide_the_shares_whatever_the_sizes() -> None:
    mixed = weighted([60, 20], [1.0, 3.0])
    places = [mixed.task_at(ordinal) for ordinal in range(160)]
    counts = Counter(place.taskset.name for place in places)
    assert counts == {"set0": 40, "set1": 120}
    assert Counter(place.taskset.name for place in places[:16]) == {"set0": 4, "set1": 12}
    of_small = [(place.epoch, place.index) for place in places if place.taskset.name == "set1"]
    assert of_small == [(epoch, index) for epoch in range(6) for index in range(20)]


def test_a_taskset_without_a_weight_beside_others_has_their_mean() -> None:
    mixed = weighted([10, 10, 10], [1.0, None, 3.0])
    assert mixed.consumed(30) == {"set0": 5, "set1": 10, "set2": 15}


@given(total=st.integers(4, 500), weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4))
def test_shares_are_whole_add_up_and_leave_nobody_out(total: int, weights: list[float]) -> None:
    shares = apportioned(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 1
    exact = [total * weight / sum(weights) for weight in weights]
    assert all(share == 1 or abs(share - wanted) <= len(weights) for share, wanted in zip(shares, exact, strict=True))


def test_a_taskset_that_joins_weighted_ones_ends_with_them() -> None:
    mixed = weighted([8, 4], [1.0, 1.0])
    newcomer = weighted([1, 1, 6], [1.0, 1.0, 2.0]).tasksets[-1]
    joined = mixed.joined(newcomer, 4, epochs=2)
    assert joined.consumed(4) == {"set0": 2, "set1": 2, "set2": 0}
    assert joined.consumed(2 * len(joined)) == {"set0": 2 + 8, "set1": 2 + 8, "set2": 16}


def test_the_easiest_rows_come_first_in_every_epoch() -> None:
    selector = DataSelectorConfig(selector_type="offline_easy2hard", feature_keys=["level", "length"])
    rows = [{"level": 1, "length": 5}, {"level": 2, "length": 1}, {"level": 2, "length": 9}, {"level": 1, "length": 5}]
    config = TasksetConfig(name="graded", data_selector=selector)
    mixed = Mixture([Taskset("graded", config, rows, ["level", "length"])])
    assert [mixed.task_at(ordinal).index for ordinal in range(8)] == [2, 1, 0, 3] * 2


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["levle"], "'levle' is no column: did you mean 'level'"),
        (["level", "name"], "row 0: name='easy' is not a number"),
        ([], "feature_keys names no column"),
    ],
)
def test_what_rows_cannot_be_ordered_by_is_told(keys: list[str], words: str) -> None:
    selector = DataSelectorConfig(selector_type="easy_to_hard", feature_keys=keys)
    config = TasksetConfig(name="graded", data_selector=selector)
    with pytest.raises(TasksetError, match=words):
        Mixture([Taskset("graded", config, [{"level": 1, "name": "easy"}], ["level", "name"])])


def test_an_adaptive_taskset_takes_the_rows_that_were_chosen_and_the_others_their_order() -> None:
    class Chosen:
        def chosen(self, taskset: str, nth: int) -> tuple[int, int]:
            return nth + 10, 7 - nth

    plain, hard = mixture([4]).tasksets[0], DataSelectorConfig(selector_type="difficulty_based")
    adaptive = Taskset("hard", TasksetConfig(name="hard", data_selector=hard), [{}] * 8, ["prompt"])
    mixed = Mixture([plain, adaptive])
    with pytest.raises(TasksetError, match="no row has been chosen for its task 0"):
        [mixed.task_at(ordinal) for ordinal in range(3)]
    places = [mixed.with_choices(Chosen()).task_at(ordinal) for ordinal in range(12)]
    assert [(p.epoch, p.index) for p in places if p.taskset is adaptive] == [(n + 10, 7 - n) for n in range(8)]
    assert [(p.epoch, p.index) for p in places if p.taskset is plain] == [(0, n) for n in range(4)]
