"""The pipeline counts every experience once: kept, or under the rule that left it out. Operators of one's own are
checked, found by name or by path, and never change what a group is."""

import math
from pathlib import Path

import numpy as np
import pytest

from services.rollout.plugins import load_plugins
from services.trainer.pipeline.operators import reward_filter, zero_variance_filter
from services.trainer.pipeline.outcome import Experiences, OperatorFailed, Outcome
from services.trainer.pipeline.pipeline import Pipeline, Stage
from services.trainer.pipeline.registry import check_arguments, operator_named, register_operator
from services.trainer.pipeline.telling import told

FIRST_TWO = Stage("first_two", lambda experiences: Outcome(experiences[:2]))


def test_what_each_rule_leaves_out_is_counted_under_its_name(answers) -> None:
    pipeline = Pipeline((Stage("reward_filter", reward_filter, {"threshold": 0.0}), FIRST_TWO))
    found = pipeline.passed(answers(-1.0, 1.0, 2.0, 3.0), step=1)
    assert [each.reward for each in found.kept] == [1.0, 2.0]
    assert found.filtered == {"reward_filter": 1, "first_two": 1}


def test_nothing_is_asked_of_later_operators_when_nothing_is_left(answers) -> None:
    def fails(experiences: Experiences) -> Outcome:
        raise AssertionError("it was asked")

    pipeline = Pipeline((Stage("zero_variance_filter", zero_variance_filter), Stage("fails", fails)))
    assert pipeline.passed(answers(1.0, 1.0), 1).filtered == {"zero_variance_filter": 2}


@pytest.mark.parametrize(("step", "kept"), [(3, 3), (4, 2), (6, 0)])
def test_what_is_staler_than_the_bound_at_its_step_is_left_out_by_its_oldest_token(answers, step, kept) -> None:
    fresh, stale, mixed = answers(1.0, 2.0, 3.0, version=2)
    stale = stale.model_copy(update={"token_versions": np.array([0, 0, 0], np.int32)})
    mixed = mixed.model_copy(update={"token_versions": np.array([1, 2, 2], np.int32)})
    found = Pipeline(max_staleness=2).passed((fresh, stale, mixed), step)
    assert len(found.kept) == kept
    assert found.filtered == ({"stale": 3 - kept} if kept < 3 else {})


def test_a_reward_that_becomes_no_number_is_never_trained_on(answers) -> None:
    def spoil(experiences: Experiences) -> Outcome:
        return Outcome(
            tuple(each.model_copy(update={"reward": math.inf}) for each in experiences[:1]) + experiences[1:]
        )

    found = Pipeline((Stage("spoil", spoil),)).passed(answers(0.0, 1.0), 1)
    assert [each.reward for each in found.kept] == [1.0]
    assert found.filtered == {"invalid_reward_filter": 1}


def _twice(experiences: Experiences) -> Outcome:
    return Outcome((*experiences, experiences[0]))


def _torn(experiences: Experiences) -> Outcome:
    return Outcome(tuple(each.model_copy(update={"logprobs": each.logprobs[:1]}) for each in experiences))


def _bare(experiences: Experiences) -> object:
    return experiences


def _raises(experiences: Experiences) -> Outcome:
    raise KeyError("quality")


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (_twice, "operator 'own' keeps an experience twice, or one that it was not given"),
        (_torn, "operator 'own' spoils position 0: .*logprobs has 1 elements for a response of 3 tokens"),
        (_bare, "operator 'own' returns tuple: return an Outcome"),
        (_raises, "operator 'own' raises KeyError: 'quality'"),
    ],
)
def test_an_operator_that_breaks_its_contract_is_told_by_name(answers, operator, words) -> None:
    with pytest.raises(OperatorFailed, match=words):
        Pipeline((Stage("own", operator),)).passed(answers(0.0, 1.0), 1)


PLUGIN = """
from services.trainer.pipeline.outcome import Outcome
from services.trainer.pipeline.registry import register_operator


@register_operator("brevity_filter")
def brevity_filter(experiences, max_tokens=2):
    kept = tuple(each for each in experiences if each.response_length <= max_tokens)
    return Outcome(kept, {"brief_share": len(kept) / len(experiences)})
"""


def test_an_operator_of_a_plug_in_and_one_at_a_path_are_found(tmp_path: Path, answers) -> None:
    (tmp_path / "brevity_of_tests.py").write_text(PLUGIN, encoding="utf-8")
    load_plugins([tmp_path])
    assert not operator_named("brevity_filter")(answers(1.0, length=3), max_tokens=2).kept
    assert operator_named("services.trainer.pipeline.operators.reward_filter") is reward_filter
    for name, words in (
        ("brevity_fliter", "there is no operator 'brevity_fliter': known are brevity_filter"),
        ("no_such_module.filter", "cannot be imported: No module named"),
        ("services.trainer.pipeline.operators.absent", "cannot be imported: module"),
        ("services.trainer.pipeline.operators.BUILT_IN", "is dict, and no function"),
    ):
        with pytest.raises(OperatorFailed, match=words):
            operator_named(name)
    with pytest.raises(OperatorFailed, match="does not take args"):
        check_arguments("brevity_filter", operator_named("brevity_filter"), {"most": 1})


@pytest.mark.parametrize("name", ["abandoned", "stale"])
def test_no_operator_takes_the_name_of_a_rule_of_the_ledgers_own(name: str) -> None:
    with pytest.raises(ValueError, match="the ledger has a rule of that name"):
        register_operator(name)


def test_a_step_tells_its_counts_by_rule_and_puts_metrics_together_as_their_names_say() -> None:
    groups = [
        {"a:sum": 1.0, "b": 1.0, "c:max": 3.0, "d:min": 3.0},
        {"a:sum": 2.0, "b": 2.0, "c:max": 1.0, "d:min": 1.0},
    ]
    assert told(5, [{"x": 2}, {}, {"x": 1, "stale": 4}], groups) == {
        "experience_pipeline/experience_count": 5.0,
        "experience_pipeline/filtered_count": 7.0,
        "experience_pipeline/filtered_count/stale": 4.0,
        "experience_pipeline/filtered_count/x": 3.0,
        "experience_pipeline/a": 3.0,
        "experience_pipeline/b": 1.5,
        "experience_pipeline/c": 3.0,
        "experience_pipeline/d": 1.0,
    }
