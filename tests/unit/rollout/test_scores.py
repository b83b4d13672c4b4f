"""Scores of repeated answers, to the numbers of Trinity-RFT's bootstrap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.scores import scores_at_k, subset_sizes, taskset_scores


def bootstrap(values: list[float], k: int) -> tuple[float, float]:
    """Best and worst as `trinity.utils.metrics.bootstrap_metric` draws them, one draw after the other."""
    random = np.random.RandomState(42)
    draws = [[values[i] for i in random.choice(len(values), size=k, replace=True)] for _ in range(1000)]
    return float(np.mean([max(drawn) for drawn in draws])), float(np.mean([min(drawn) for drawn in draws]))


def test_four_answers_have_these_scores() -> None:
    values = [0.0, 1.0, 1.0, 0.5]
    scores = scores_at_k(values)
    assert set(scores) == {"mean@4", "std@4", "best@2", "worst@2", "best@4", "worst@4"}
    assert scores["mean@4"] == 0.625
    assert scores["std@4"] == pytest.approx(np.std(values))
    for k in (2, 4):
        assert (scores[f"best@{k}"], scores[f"worst@{k}"]) == bootstrap(values, k)


@given(values=st.lists(st.floats(-5, 5), min_size=2, max_size=12))
def test_the_best_of_more_is_no_worse_and_stays_between_the_extremes(values: list[float]) -> None:
    scores = scores_at_k(values)
    for k in subset_sizes(len(values)):
        assert min(values) - 1e-9 <= scores[f"worst@{k}"] <= scores[f"best@{k}"] + 1e-9 <= max(values) + 2e-9


def test_one_answer_has_no_best() -> None:
    assert scores_at_k([0.5]) == {"mean@1": 0.5, "std@1": 0.0}


def test_subset_sizes_are_powers_of_two_and_the_whole() -> None:
    assert [subset_sizes(n) for n in (1, 2, 3, 4, 6, 8, 9)] == [
        [],
        [2],
        [2, 3],
        [2, 4],
        [2, 4, 6],
        [2, 4, 8],
        [2, 4, 8, 9],
    ]


def test_a_taskset_has_the_mean_over_its_tasks() -> None:
    tasks = [[{"accuracy": 1.0}, {"accuracy": 1.0}], [{"accuracy": 0.0}, {"accuracy": 1.0}]]
    scores = taskset_scores(tasks)
    assert scores["accuracy/mean@2"] == 0.75
    assert scores["accuracy/best@2"] == (1.0 + bootstrap([0.0, 1.0], 2)[0]) / 2


def test_what_an_answer_lacks_counts_as_nothing_and_a_task_without_answers_is_left_out() -> None:
    tasks = [[{"accuracy": 1.0}, {"prompt_truncated": 1.0}], []]
    scores = taskset_scores(tasks)
    assert scores["accuracy/mean@2"] == 0.5
    assert scores["prompt_truncated/mean@2"] == 0.5
    assert taskset_scores([]) == {}
