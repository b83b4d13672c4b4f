"""The operators of the experience pipeline by name, with the arguments that each takes and their defaults.

What they do is in `services/trainer/pipeline/operators.py`; here is what a configuration can be checked by.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from services.config.errors import Problem
from services.config.spelling import nearest
from services.config.tree import RunConfig
from services.rollout.config import OperatorConfig

KEY = "data_processor.experience_pipeline.operators"
NOT_AVAILABLE = ("data_juicer",)
RESERVED = ("abandoned", "stale")
"""Rules of the ledger that no operator may be named after."""

OPERATORS: dict[str, dict[str, object]] = {
    "reward_filter": {"threshold": 0.0},
    "reward_std_filter": {"threshold": 0.0},
    "zero_variance_filter": {},
    "invalid_reward_filter": {},
    "dapo_dynamic_sampling": {"metric_key": "accuracy", "correct_threshold": 0.0},
    "overlong_penalty": {"max_response_length": None, "cache_length": None, "penalty_factor": 1.0},
    "mask_response_truncated": {},
    "reward_shaping_mapper": {"reward_shaping_configs": []},
    "pass_rate_calculator": {},
}
SHAPING: dict[str, object] = {"stats_key": None, "op_type": "ADD", "weight": 1.0}
SHAPING_TYPES = ("ADD", "SUB", "MUL", "DIV")
_NUMBERS = ("threshold", "correct_threshold", "penalty_factor")


def operator_problems(config: RunConfig) -> Iterator[Problem]:
    """What is wrong with the operators of the experience pipeline. One that a plug-in brings is looked up when the
    plug-ins are loaded."""
    for index, operator in enumerate(config.data_processor.experience_pipeline.operators):
        for message in _faults(config, operator):
            yield Problem(f"{KEY}[{index}]", f"{KEY}[{index}]: {message}")


def _faults(config: RunConfig, operator: OperatorConfig) -> Iterator[str]:
    name, args = operator.name, operator.args
    if name not in OPERATORS:
        if name in RESERVED or not ("." in name or config.plugin_dirs) or name in NOT_AVAILABLE:
            yield _unknown(name)
        return
    known = OPERATORS[name]
    for given in args:
        if given not in known:
            yield f"{name} has no argument {given}: {_choices(given, known)}"
    for key in _NUMBERS:
        if key in args and not _is_number(args[key]):
            yield f"{name}.{key}={args[key]!r} is not a number"
    if name == "dapo_dynamic_sampling" and not isinstance(args.get("metric_key", ""), str):
        yield f"{name}.metric_key={args['metric_key']!r} is not the name of a score"
    if name == "overlong_penalty":
        yield from _overlong_faults(config, args)
    if name == "reward_shaping_mapper":
        yield from _shaping_faults(args.get("reward_shaping_configs", []))


def _overlong_faults(config: RunConfig, args: Mapping[str, Any]) -> Iterator[str]:
    longest, cache = args.get("max_response_length"), args.get("cache_length")
    longest = config.max_response_tokens if longest is None else longest
    if not isinstance(cache, int) or not isinstance(longest, int) or not 0 < cache < longest:
        yield (
            f"overlong_penalty.cache_length={cache} with max_response_length={longest}: the penalty grows over the "
            "last cache_length tokens before max_response_length: give numbers of tokens, cache_length the smaller"
        )


def _shaping_faults(shapings: object) -> Iterator[str]:
    if not isinstance(shapings, list) or not all(isinstance(each, dict) for each in shapings):
        yield "reward_shaping_mapper.reward_shaping_configs is not a list of {stats_key, op_type, weight}"
        return
    for each in shapings:
        for given in each:
            if given not in SHAPING:
                yield f"reward_shaping_configs has no key {given}: {_choices(given, SHAPING)}"
        if not isinstance(each.get("stats_key"), str):
            yield f"reward_shaping_configs: stats_key={each.get('stats_key')!r} is not the name of a score"
        if each.get("op_type", "ADD") not in SHAPING_TYPES:
            yield f"reward_shaping_configs: op_type={each['op_type']!r} is none of {', '.join(SHAPING_TYPES)}"
        if not _is_number(each.get("weight", 1.0)):
            yield f"reward_shaping_configs: weight={each['weight']!r} is not a number"


def _unknown(name: str) -> str:
    if name in NOT_AVAILABLE:
        return f"{name} is not available yet: use one of {', '.join(OPERATORS)}, or an operator of your own"
    if name in RESERVED:
        return f"{name} is a rule of the ledger's own: name the operator differently"
    meant = nearest(name, OPERATORS)
    advice = f"did you mean {meant}?" if meant else f"use one of {', '.join(OPERATORS)}"
    return f"{name!r} is no operator: {advice} (one of your own needs plugin_dirs, or is named module.function)"


def _choices(given: str, known: Mapping[str, object]) -> str:
    if not known:
        return "it takes none"
    meant = nearest(given, known)
    return f"did you mean {meant}?" if meant else f"it takes {', '.join(known)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
