"""What a configuration leaves open and other keys decide; deriving twice changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.config.keys import put
from services.config.tree import DEFAULT_CHECKPOINT_ROOT_DIR, INHERITED_FROM_MODEL, RunConfig
from services.trainer.config import Precision

WEIGHTS_DTYPES: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "auto": "bf16"}


@dataclass(frozen=True)
class Derived:
    """A value that was decided for `key`, and by what."""

    key: str
    value: object
    why: str


def derived(config: RunConfig) -> list[Derived]:
    """The values of all keys that were left open."""
    return [
        *_algorithm_parts(config),
        *_sizes(config),
        *_lengths(config),
        *_rollout_model(config),
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
    parts = {
        "repeat_times": config.algorithm_type.repeat_times,
        "advantage_fn": config.algorithm_type.advantage_fn,
        "policy_loss_fn": config.algorithm_type.policy_loss_fn,
        "kl_loss_fn": config.algorithm_type.kl_loss_fn,
        "kl_penalty_fn": "none",
        "entropy_loss_fn": config.algorithm_type.entropy_loss_fn,
        "sample_strategy": config.algorithm_type.sample_strategy,
        "loss_agg_mode": "token-mean",
    }
    for part, value in parts.items():
        if getattr(config.algorithm, part) is None:
            yield Derived(f"algorithm.{part}", value, why)


def _sizes(config: RunConfig) -> Iterator[Derived]:
    if config.buffer.batch_size is None:
        given = config.buffer.train_batch_size
        why = f"train_batch_size {given} / repeat_times {config.repeat_times}" if given else "one task"
        yield Derived("buffer.batch_size", config.batch_size, why)
    if not config.buffer.train_batch_size:
        why = f"batch_size {config.batch_size} * repeat_times {config.repeat_times}"
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
