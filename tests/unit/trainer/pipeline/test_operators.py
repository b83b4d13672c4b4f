"""What each operator keeps and changes, by values worked out by hand."""

import math

import pytest

from services.trainer.pipeline.operators import (
    dapo_dynamic_sampling,
    invalid_reward_filter,
    mask_response_truncated,
    overlong_penalty,
    pass_rate_calculator,
    reward_filter,
    reward_shaping_mapper,
    reward_std_filter,
    sample_std_filter,
    zero_variance_filter,
)


def rewards(outcome) -> list[float]:
    return [each.reward for each in outcome.kept]


def test_reward_filter_keeps_the_threshold_itself(answers) -> None:
    assert rewards(reward_filter(answers(-0.5, 0.0, 0.5))) == [0.0, 0.5]
    assert rewards(reward_filter(answers(-0.5, 0.0, 0.5), threshold=0.5)) == [0.5]


@pytest.mark.parametrize(
    ("given", "threshold", "is_kept"),
    [
        ((0.0, 1.0), 0.0, True),
        ((0.0, 1.0), 0.5, False),  # the population deviation is 0.5
        ((0.0, 1.0), 0.499, True),
        ((1.0, 1.0), 0.0, False),
        ((1.0,), 0.0, False),
    ],
)
def test_reward_std_filter_takes_the_deviation_of_the_population(answers, given, threshold, is_kept) -> None:
    assert bool(reward_std_filter(answers(*given), threshold).kept) is is_kept


def test_the_filter_of_an_advantage_takes_the_deviation_of_a_sample_and_the_last_step_of_an_episode(answers) -> None:
    assert sample_std_filter(answers(0.0, 1.0), 0.7).kept  # 0.7071
    assert not sample_std_filter(answers(0.0, 1.0), 0.71).kept
    assert not sample_std_filter(answers(1.0), 0.0).kept
    first, second = answers(0.0, 1.0)
    episodes = (first, first.model_copy(update={"step": 1, "reward": 1.0}), second)
    assert not sample_std_filter(episodes, 0.0).kept


def test_zero_variance_filter_drops_equal_rewards_alone(answers) -> None:
    assert not zero_variance_filter(answers(0.3, 0.3)).kept
    assert rewards(zero_variance_filter(answers(0.3, 0.3, 0.4))) == [0.3, 0.3, 0.4]


def test_invalid_reward_filter_drops_what_is_no_number(answers) -> None:
    good, bad = answers(1.0, 2.0)
    spoilt = bad.model_copy(update={"reward": math.nan})
    assert invalid_reward_filter((good, spoilt)).kept == (good,)


@pytest.mark.parametrize(
    ("accuracies", "is_kept", "all_right", "all_wrong"),
    [((0.0, 1.0), True, 0, 0), ((1.0, 1.0), False, 2, 0), ((0.0, 0.0), False, 0, 2), ((1.0,), False, None, None)],
)
def test_dynamic_sampling_keeps_groups_that_are_neither_all_right_nor_all_wrong(
    answers, accuracies, is_kept, all_right, all_wrong
) -> None:
    given = tuple(
        each.model_copy(update={"metrics": {"accuracy": accuracy}, "reward": accuracy - 5.0})
        for each, accuracy in zip(answers(*accuracies), accuracies, strict=True)
    )
    found = dapo_dynamic_sampling(given)
    assert bool(found.kept) is is_kept
    assert found.metrics.get("dropped_all_correct:sum") == all_right
    assert found.metrics.get("dropped_all_wrong:sum") == all_wrong


def test_dynamic_sampling_takes_another_score_and_the_reward_where_there_is_none(answers) -> None:
    assert dapo_dynamic_sampling(answers(-1.0, 0.1)).kept
    assert not dapo_dynamic_sampling(answers(0.2, 0.1), correct_threshold=0.5).kept
    assert not dapo_dynamic_sampling(answers(-1.0, 0.1, metrics={"solved": 1.0}), metric_key="solved").kept


@pytest.mark.parametrize(("length", "penalty"), [(8, 0.0), (12, 0.0), (14, -0.5), (16, -1.0), (20, -1.0)])
def test_the_overlong_penalty_grows_over_the_last_tokens_before_the_maximum(answers, length, penalty) -> None:
    (found,) = overlong_penalty(answers(1.0, length=length), max_response_length=16, cache_length=4).kept
    assert (found.reward, found.metrics["overlong_penalty"]) == (1.0 + penalty, penalty)
    (doubled,) = overlong_penalty(answers(1.0, length=length), 16, 4, penalty_factor=2.0).kept
    assert doubled.reward == 1.0 + 2 * penalty


def test_a_truncated_response_is_masked_and_no_other(answers) -> None:
    whole, cut = answers(0.0, 1.0)
    cut = cut.model_copy(update={"is_truncated": True})
    found = mask_response_truncated((whole, cut))
    assert found.kept[0] is whole
    assert found.kept[1].action_mask.tolist() == [0, 0, 0]
    assert cut.action_mask.tolist() == [1, 1, 1]
    assert found.metrics == {"masked_truncated_count:sum": 1.0}


@pytest.mark.parametrize(("op_type", "reward"), [("ADD", 5.0), ("SUB", -1.0), ("MUL", 6.0), ("DIV", 2 / 3)])
def test_rewards_are_shaped_by_a_weighted_score(answers, op_type, reward) -> None:
    shaping = {"stats_key": "quality", "op_type": op_type, "weight": 1.5}
    found = reward_shaping_mapper(answers(2.0, metrics={"quality": 2.0}), [shaping])
    assert rewards(found) == [pytest.approx(reward)]
    assert found.metrics["reward_diff/mean"] == pytest.approx(reward - 2.0)


def test_shapings_follow_each_other_and_leave_out_missing_scores_and_division_by_zero(answers) -> None:
    shapings = [{"stats_key": "a"}, {"stats_key": "absent"}, {"stats_key": "zero", "op_type": "DIV"}]
    given = answers(2.0, metrics={"a": 1.0, "zero": 0.0})
    assert rewards(reward_shaping_mapper(given, shapings)) == [3.0]


def test_pass_rates_are_told_and_nothing_is_filtered(answers) -> None:
    given = answers(*[1.0] * 15, 0.0)
    found = pass_rate_calculator(given)
    assert found.kept == given
    assert found.metrics == {
        "selection/pass_rate": 0.9375,
        "selection/valid_ratio": 1.0,
        "selection/strict_valid_ratio": 0.0,
        "selection/<1_ratio": 1.0,
        "selection/>0_ratio": 1.0,
        "selection/<15_16_ratio": 0.0,
        "selection/>1_16_ratio": 1.0,
    }
