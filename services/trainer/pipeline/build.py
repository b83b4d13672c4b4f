"""From the configuration to the pipeline. Plug-ins must have been loaded."""

from services.config.reuse_rule import most_staleness
from services.config.tree import RunConfig
from services.rollout.config import OperatorConfig
from services.trainer.pipeline.operators import sample_std_filter
from services.trainer.pipeline.outcome import OperatorFailed
from services.trainer.pipeline.pipeline import Pipeline, Stage
from services.trainer.pipeline.registry import check_arguments, operator_named

STD_RULE = "reward_std_filter"


def pipeline_of(config: RunConfig) -> Pipeline:
    """The pipeline that a configuration asks for: its operators, what the advantage function leaves out
    (`std_threshold`), and what the sample strategy does (`staleness_control`).

    Raises:
        OperatorFailed: an operator is not there, or does not take its arguments.
    """
    asked = config.data_processor.experience_pipeline
    stages = [_stage(config, operator) for operator in asked.operators]
    threshold = (config.algorithm.advantage_fn_args or {}).get("std_threshold")
    if threshold is not None:
        stages.append(Stage(STD_RULE, sample_std_filter, {"threshold": float(threshold)}))
    return Pipeline(tuple(stages), most_staleness(config), asked.refill_batches)


def problems(config: RunConfig) -> list[str]:
    """What keeps the pipeline from being built, in words."""
    try:
        pipeline_of(config)
    except OperatorFailed as error:
        return [str(error)]
    return []


def _stage(config: RunConfig, asked: OperatorConfig) -> Stage:
    arguments = dict(asked.args)
    if asked.name == "overlong_penalty" and arguments.get("max_response_length") is None:
        arguments["max_response_length"] = config.max_response_tokens
    operator = operator_named(asked.name)
    check_arguments(asked.name, operator, arguments)
    return Stage(asked.name, operator, arguments)
