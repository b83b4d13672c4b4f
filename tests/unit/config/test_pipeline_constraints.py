"""A wrong operator, argument or bound of the experience pipeline is told at once, with the right ones."""

import inspect
from collections.abc import Callable

import pytest

from services.config.availability import notices, unavailable
from services.config.errors import ConfigError
from services.config.load import Loaded
from services.config.operators import OPERATORS, RESERVED, SHAPING, SHAPING_TYPES
from services.trainer.pipeline.build import pipeline_of
from services.trainer.pipeline.operators import BUILT_IN
from services.trainer.pipeline.pipeline import INVALID, STALE

Load = Callable[..., Loaded]

KEY = "data_processor.experience_pipeline.operators"
REFILL = "data_processor.experience_pipeline.refill_batches"


def operators(text: str) -> str:
    return f"{KEY}=[{text}]"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_table_tells_the_arguments_of_the_operators(name: str) -> None:
    parameters = list(inspect.signature(BUILT_IN[name]).parameters.values())[1:]
    assert [each.name for each in parameters] == list(OPERATORS[name])
    for each in parameters:
        if each.default is not inspect.Parameter.empty and name != "reward_shaping_mapper":
            assert each.default == OPERATORS[name][each.name]


def test_the_table_has_every_operator_and_no_operator_a_rule_of_the_ledgers_own() -> None:
    assert set(OPERATORS) == set(BUILT_IN)
    assert set(RESERVED) == {"abandoned", STALE}
    assert INVALID in OPERATORS
    assert (list(SHAPING), SHAPING_TYPES) == (["stats_key", "op_type", "weight"], ("ADD", "SUB", "MUL", "DIV"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (operators("{name: reward_fliter}"), "'reward_fliter' is no operator: did you mean reward_filter?"),
        (operators("{name: x}"), "'x' is no operator: use one of reward_filter, reward_std_filter, zero_variance"),
        (operators("{name: data_juicer}"), "data_juicer is not available yet: use one of reward_filter"),
        (operators("{name: stale}"), "stale is a rule of the ledger's own: name the operator differently"),
        (operators("{name: reward_filter, args: {treshold: 1}}"), "has no argument treshold: did you mean threshold?"),
        (operators("{name: zero_variance_filter, args: {threshold: 1}}"), "has no argument threshold: it takes none"),
        (operators("{name: reward_filter, args: {threshold: high}}"), "reward_filter.threshold='high' is not a number"),
        (operators("{name: overlong_penalty}"), "overlong_penalty.cache_length=None with max_response_length="),
        (
            operators("{name: overlong_penalty, args: {cache_length: 64, max_response_length: 64}}"),
            "cache_length=64 with max_response_length=64: the penalty grows over",
        ),
        (
            operators("{name: reward_shaping_mapper, args: {reward_shaping_configs: [{stats_key: a, op_type: POW}]}}"),
            "op_type='POW' is none of ADD, SUB, MUL, DIV",
        ),
        (
            operators("{name: reward_shaping_mapper, args: {reward_shaping_configs: [{weight: 1}]}}"),
            "stats_key=None is not the name of a score",
        ),
        (f"{REFILL}=-1", f"{REFILL}=-1 is too small: use 0 (nothing is made up for) or more"),
    ],
)
def test_a_wrong_pipeline_is_refused_with_what_is_right(loaded: Load, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(override)
    (problem,) = refused.value.problems
    assert message in problem.message


def test_an_operator_of_a_plug_in_is_looked_for_when_plug_ins_are_loaded(loaded: Load) -> None:
    assert loaded(operators("{name: my_filter, args: {anything: 1}}"), "plugin_dirs=[plugins]").config.plugin_dirs
    assert loaded(operators("{name: my_package.filters.short}")).config


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        (["synchronizer.sync_style=fully_async", "synchronizer.sync_interval=4"], 3),
        (["synchronizer.sync_interval=2", "synchronizer.sync_offset=1"], 2),
    ],
)
def test_a_staleness_that_every_sample_exceeds_is_refused(loaded: Load, overrides: list[str], needed: int) -> None:
    strategy = ["algorithm.sample_strategy=staleness_control"]
    key = "algorithm.sample_strategy_args.max_staleness"
    found = loaded(*overrides, *strategy, f"{key}={needed}").config
    assert pipeline_of(found).max_staleness == needed
    with pytest.raises(ConfigError, match=f"use {needed} or more"):
        loaded(*overrides, *strategy, f"{key}={needed - 1}")


def test_staleness_control_over_rollout_and_operators_are_available(loaded: Load) -> None:
    found = loaded(
        "algorithm.sample_strategy=staleness_control",
        "synchronizer.sync_style=dynamic_by_explorer",
        "explorer.over_rollout.ratio=0.25",
        operators("{name: dapo_dynamic_sampling}, {name: overlong_penalty, args: {cache_length: 4}}"),
    ).config
    assert unavailable(found) == []
    built = pipeline_of(found)
    assert [stage.rule for stage in built.stages] == ["dapo_dynamic_sampling", "overlong_penalty"]
    assert built.stages[1].arguments == {"cache_length": 4, "max_response_length": found.max_response_tokens}
    assert (built.max_staleness, built.refill) == (None, 10)


def test_std_threshold_of_the_advantage_is_a_filter_after_the_operators(loaded: Load) -> None:
    given = ["algorithm.advantage_fn_args.std_threshold=0.1", "algorithm.advantage_fn_args.duplicate_experiences=true"]
    found = loaded(operators("{name: reward_filter}"), *given).config
    assert [stage.rule for stage in pipeline_of(found).stages] == ["reward_filter", "reward_std_filter"]
    assert any("duplicate_experiences=true has no effect" in line for line in notices(found))


def test_what_over_rollout_waits_for_has_no_effect(loaded: Load) -> None:
    told = notices(loaded("explorer.over_rollout.wait_after_min=5").config)
    assert any("wait_after_min=5.0 has no effect" in line for line in told)
