"""What a configuration leaves open and other keys decide; deriving twice changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.config.algorithms.choice import agg_mode_of, arguments_of, compares_with_own_logprobs, part_of
from services.config.algorithms.parts import PARTS, Kind
from services.config.keys import put
from services.config.tree import DEFAULT_CHECKPOINT_ROOT_DIR, INHERITED_FROM_MODEL, RunConfig
from services.config.verl.same import taken_over, with_taken_over
from services.inference.architectures import is_classifier
from services.trainer.config import Precision

ROWS_SYNC_INTERVAL = 1000
WEIGHTS_DTYPES: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "auto": "bf16"}


@dataclass(frozen=True)
class Derived:
    """A value that was decided for `key`, and by what."""

    key: str
    value: object
    why: str


def derived(config: RunConfig) -> list[Derived]:
    """The values of all keys that were left open."""
    taken = [Derived(*each) for each in taken_over(config)]
    config = with_taken_over(config)
    return [
        *taken,
        *_algorithm_parts(config),
        *_sizes(config),
        *_lengths(config),
        *_rollout_model(config),
        *_auxiliary_models(config),
        *_pace(config),
        *_rest(config),
    ]


def resolved(config: RunConfig) -> RunConfig:
    """The same configuration with nothing left open."""
    tree: dict[str, Any] = config.model_dump()
    for decision in derived(config):
        put(tree, decision.key, decision.value)
    return RunConfig.model_validate(tree)


def _algorithm_parts(config: RunConfig) -> Iterator[Derived]:
    why = f"default of {config.algorithm.algorithm_type}"
    if config.algorithm.repeat_times is None:
        yield Derived("algorithm.repeat_times", config.algorithm_type.repeat_times, why)
    if config.algorithm.bypass_old_logprobs is None:
        asked = "rollout_correction" if config.algorithm.rollout_correction else "no rollout_correction"
        yield Derived("algorithm.bypass_old_logprobs", not compares_with_own_logprobs(config), asked)
    for kind in PARTS:
        name = part_of(config, kind)
        if getattr(config.algorithm, kind) is None:
            by_type = name == getattr(config.algorithm_type, kind)
            yield Derived(f"algorithm.{kind}", name, why if by_type else "rollout_correction.loss_type")
        yield from _arguments(config, kind, f"default of {name}")
    mode = agg_mode_of(config)
    if config.algorithm.loss_agg_mode is None and mode is not None:
        yield Derived("algorithm.loss_agg_mode", mode, f"that of {part_of(config, 'policy_loss_fn')}")


def _arguments(config: RunConfig, kind: Kind, why: str) -> Iterator[Derived]:
    """The arguments that were left open; what cannot be read is left to the checks."""
    key, complete = f"algorithm.{kind}_args", arguments_of(config, kind)
    if complete is None:
        return
    given = getattr(config.algorithm, f"{kind}_args")
    if given is None and not complete:
        yield Derived(key, {}, why)
    for name, value in complete.items():
        if name not in (given or {}):
            yield Derived(f"{key}.{name}", value, why)


def _sizes(config: RunConfig) -> Iterator[Derived]:
    if config.buffer.batch_size is None:
        given = config.buffer.train_batch_size
        why = f"train_batch_size {given} / repeat_times {config.repeat_times}" if given else "one task"
        yield Derived("buffer.batch_size", config.batch_size, why)
    if not config.buffer.train_batch_size:
        why = f"batch_size {config.batch_size} * repeat_times {config.repeat_times}"
        if config.expert_batch_size:
            why += f", and {config.expert_batch_size} expert rows"
        yield Derived("buffer.train_batch_size", config.train_batch_size, why)


def _lengths(config: RunConfig) -> Iterator[Derived]:
    model = config.model
    if model.max_prompt_tokens is None:
        why = "default length" if model.max_model_len is None else "max_model_len - max_response_tokens"
        yield Derived("model.max_prompt_tokens", config.max_prompt_tokens, why)
    if model.max_response_tokens is None:
        why = "default length" if model.max_model_len is None else "what max_model_len leaves"
        yield Derived("model.max_response_tokens", config.max_response_tokens, why)
    if model.max_model_len is None:
        yield Derived("model.max_model_len", config.max_model_len, "max_prompt_tokens + max_response_tokens")


def _rollout_model(config: RunConfig) -> Iterator[Derived]:
    for key, value in config.inherited_by_rollout_model.items():
        if value is not None:
            yield Derived(f"explorer.rollout_model.{key}", value, f"model.{INHERITED_FROM_MODEL[key]}")


def _auxiliary_models(config: RunConfig) -> Iterator[Derived]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        scores = is_classifier(model.model_path or "") if model.is_local else False
        if model.runner == "auto" and scores is not None:
            why = "its config.json" if model.is_local else "it answers"
            yield Derived(f"explorer.auxiliary_models[{place}].runner", "pooling" if scores else "generate", why)


def _pace(config: RunConfig) -> Iterator[Derived]:
    """Nobody waits for the weights of a run on rows of data or a store: they come with its checkpoints."""
    is_open = "sync_interval" not in config.synchronizer.model_fields_set
    if config.experience_source not in ("rows", "store") or not is_open:
        return
    saved = config.trainer.save_interval
    why = "as trainer.save_interval: no explorer waits" if saved else "no explorer waits, and save_interval is 0"
    yield Derived("synchronizer.sync_interval", saved or config.total_steps or ROWS_SYNC_INTERVAL, why)


def _rest(config: RunConfig) -> Iterator[Derived]:
    if not config.checkpoint_root_dir:
        yield Derived("checkpoint_root_dir", DEFAULT_CHECKPOINT_ROOT_DIR, "unset")
    if config.eval_tasksets and config.eval_interval != config.explorer.eval_interval:
        why = f"{config.explorer.eval_interval} rounded up to a multiple of sync_interval"
        yield Derived("explorer.eval_interval", config.eval_interval, why)
    if config.trainer.weights_dtype is None:
        dtype = config.explorer.rollout_model.dtype
        value = WEIGHTS_DTYPES.get(dtype, "fp32")
        yield Derived("trainer.weights_dtype", value, f"explorer.rollout_model.dtype {dtype}")
    if config.trainer.max_token_len_per_gpu is None:
        shared_by = max(1, config.trainer.ulysses_sequence_parallel_size)
        tokens = -(-2 * config.max_model_len // shared_by)
        yield Derived("trainer.max_token_len_per_gpu", tokens, "2 * max_model_len / ulysses_sequence_parallel_size")
