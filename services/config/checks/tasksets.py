"""What must hold of the tasksets: their selectors, with their arguments, their weights, and the task pipeline."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from services.config.errors import Problem
from services.config.spelling import nearest
from services.config.tree import RunConfig
from services.rollout.config import OperatorConfig, RowPipelineConfig
from services.rollout.row_operators import ROW_OPERATORS
from services.rollout.selectors import ADAPTIVE, DIFFICULTY, EASY_FIRST, SELECTORS

KEY = "buffer.explorer_input"
PIPELINE = "data_processor.task_pipeline"


def _selectors_are_known(config: RunConfig) -> Iterator[Problem]:
    for taskset in config.tasksets:
        selector, where = taskset.data_selector, f"taskset {taskset.name}: data_selector"
        name = selector.selector_type
        if name is not None and name not in SELECTORS:
            meant = nearest(name, SELECTORS)
            advice = f"did you mean {meant}?" if meant else f"use one of {', '.join(SELECTORS)}"
            yield Problem(KEY, f"{where}.selector_type={name} is no selector: {advice}")
        if name in EASY_FIRST and not selector.feature_keys:
            message = f"{where}.selector_type={name} needs feature_keys: the columns that say how easy a row is"
            yield Problem(KEY, message)
        if name in ADAPTIVE:
            yield from (Problem(KEY, f"{where}.kwargs: {fault}") for fault in _faults(selector.kwargs))
        elif selector.kwargs:
            given = ", ".join(selector.kwargs)
            yield Problem(KEY, f"{where}.kwargs: {name} takes no arguments, and {given} is given: leave it out")


def _weights_are_shares(config: RunConfig) -> Iterator[Problem]:
    for taskset in config.tasksets:
        if taskset.weight is not None and taskset.weight <= 0:
            message = f"taskset {taskset.name}: weight={taskset.weight:g} is no share of the tasks: use more than 0"
            yield Problem(KEY, message)


_RANGES: dict[str, tuple[float, float, str]] = {
    "m": (1, 1e9, "the tries that a pass rate stands for, 1 or more"),
    "lamb": (0, 1, "how much is forgotten at each batch, from 0 to 1"),
    "rho": (0, 1, "what a guess is worth beside a try, from 0 to 1"),
    "target_reward": (0, 1, "a pass rate, from 0 to 1"),
    "tau": (0, 1e9, "a temperature, 0 or more"),
}


def _faults(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if name not in DIFFICULTY:
            meant = nearest(name, DIFFICULTY)
            advice = f"did you mean {meant}?" if meant else f"it takes {', '.join(DIFFICULTY)}"
            yield f"difficulty_based has no argument {name}: {advice}"
        elif name in ("do_sample", "adaptive_rho") and not isinstance(value, bool):
            yield f"{name}={value!r}: use true or false"
        elif name == "metric_key" and not isinstance(value, str | None):
            yield f"metric_key={value!r} is not the name of a score"
        elif name in _RANGES:
            low, high, meaning = _RANGES[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                yield f"{name}={value!r}: it is {meaning}"


def _task_operators_are_known(config: RunConfig) -> Iterator[Problem]:
    shared = config.data_processor.task_pipeline
    given: list[tuple[str, RowPipelineConfig]] = [(PIPELINE, shared)] if shared else []
    given += [(f"{KEY}: taskset {t.name}: task_pipeline", t.task_pipeline) for t in config.tasksets if t.task_pipeline]
    seen: list[RowPipelineConfig] = []
    for key, pipeline in given:
        if any(other.operators == pipeline.operators for other in seen):
            continue
        seen.append(pipeline)
        for place, operator in enumerate(pipeline.operators):
            for fault in _operator_faults(config, operator):
                yield Problem(f"{key}.operators[{place}]", f"{key}.operators[{place}]: {fault}")


def _operator_faults(config: RunConfig, operator: OperatorConfig) -> Iterator[str]:
    name = operator.name
    if name in ROW_OPERATORS:
        for argument in operator.args:
            if argument not in ROW_OPERATORS[name]:
                yield f"{name} has no argument {argument}: it takes {', '.join(ROW_OPERATORS[name])}"
    elif not ("." in name or config.plugin_dirs):
        meant = nearest(name, ROW_OPERATORS)
        advice = f"did you mean {meant}?" if meant else f"use one of {', '.join(ROW_OPERATORS)}"
        yield (
            f"{name!r} is no operator of tasks: {advice} (those of Data-Juicer are not available; one of your own "
            "needs plugin_dirs, or is named module.function)"
        )


def _task_pipeline_can_be_done(config: RunConfig) -> Iterator[Problem]:
    pipeline = config.data_processor.task_pipeline
    if pipeline is None:
        return
    if pipeline.config_path:
        message = f"{PIPELINE}.config_path={pipeline.config_path} is a file of Data-Juicer, which is not available"
        yield Problem(f"{PIPELINE}.config_path", f"{message}: name the operators under {PIPELINE}.operators")
    if pipeline.top_k == 0 or pipeline.top_k < -1:
        yield Problem(f"{PIPELINE}.top_k", f"{PIPELINE}.top_k={pipeline.top_k}: use 1 or more, or -1 for all rows")
    output = pipeline.output.path if pipeline.output else None
    if output and not output.endswith(".jsonl"):
        yield Problem(f"{PIPELINE}.output", f"{PIPELINE}.output.path={output}: what comes out is written as .jsonl")
    read = {*pipeline.inputs, *(taskset.path for taskset in config.tasksets if not pipeline.inputs)}
    if output in read:
        message = f"{PIPELINE}.output.path={output} is what the pipeline reads: choose another path"
        yield Problem(f"{PIPELINE}.output", message)


TASKSET_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _selectors_are_known,
    _weights_are_shares,
    _task_operators_are_known,
    _task_pipeline_can_be_done,
)
