"""veRL's own configuration objects, made from the run's: ours first, and over them what `trainer.trainer_config` says.

The only place that knows both vocabularies.
"""

import importlib.util
from typing import Any

from services.config.micro_batches import data_ranks, is_dynamic, micro_batch_size, token_budget
from services.config.schedule import Schedule, critic_schedule, policy_schedule, schedule_steps, who_needs_a_total
from services.config.stages import merged
from services.config.tree import RunConfig
from services.config.verl.optimizers import OPTIMIZERS
from services.config.verl.tree import Role, below, engine_of, given, model_of, place_of
from services.trainer.backends.packing import Layout

CLIPRANGE_VALUE = 0.5
_ATTENTION_CPU = "sdpa"
_PACKING = ("sdpa", "eager")
"""Attention that transformers masks by itself where sequences are packed; it costs the square of all their tokens."""


def worker_config(config: RunConfig, role: Role = "actor") -> Any:
    """veRL's `TrainingWorkerConfig` for one worker group.

    veRL's forward-only engine offloads from an accelerator; on the CPU the reference is an engine never stepped.
    """
    forward_only = role == "reference" and not on_cpu(config)
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TrainingWorkerConfig

    return TrainingWorkerConfig(
        model_type="value_model" if role == "critic" else "language_model",
        model_config=_model_config(config, role),
        engine_config=_engine_config(config, role, forward_only),
        optimizer_config=None if forward_only else _optimizer_config(config, role),
        checkpoint_config=CheckpointConfig(**below(config, f"{place_of(role)}.checkpoint")),
    )


def layout(config: RunConfig, role: Role, together: int = 1, is_forward: bool = False) -> Layout:
    """How batches are parted for the models of a role; `together` sequences in a row stay together.

    A pass that `is_forward` alone may have micro-batches of its own.
    """
    return Layout(
        ranks=data_ranks(config),
        token_budget=token_budget(config, role, is_forward),
        micro_batch_size=None if is_dynamic(config, role) else micro_batch_size(config, role, is_forward),
        together=together,
        is_balanced=config.trainer.balance_batch,
    )


def cliprange_value(config: RunConfig) -> float:
    """How far a value may move in one step before its loss is clipped."""
    asked = given(config, "critic.cliprange_value")
    return CLIPRANGE_VALUE if asked is None else float(asked)


def model_path(config: RunConfig, role: Role) -> str:
    """The model that a role begins from."""
    return config.model.model_path if role != "critic" else config.model.critic_model_path or config.model.model_path


def on_cpu(config: RunConfig) -> bool:
    return config.cluster.gpu_per_node == 0


def removes_padding(config: RunConfig) -> bool:
    """Padding is removed where flash-attention can work on packed sequences, or another attention is asked for."""
    if not config.trainer.use_remove_padding:
        return False
    asked = _asked_attention(config)
    if asked is not None:
        return asked in _PACKING or not on_cpu(config)
    return importlib.util.find_spec("flash_attn") is not None and not on_cpu(config)


def _asked_attention(config: RunConfig) -> Any:
    return given(config, f"{model_of('actor')}.override_config.attn_implementation")


def _model_config(config: RunConfig, role: Role) -> Any:
    from verl.workers.config import HFModelConfig

    checkpointing = config.trainer.enable_gradient_checkpointing
    attention = _asked_attention(config) or (None if removes_padding(config) else _ATTENTION_CPU)
    ours: dict[str, Any] = {
        "path": model_path(config, role),
        "enable_gradient_checkpointing": not on_cpu(config) if checkpointing is None else checkpointing,
        "trust_remote_code": config.trainer.trust_remote_code or config.model.trust_remote_code,
        "override_config": {} if attention is None else {"attn_implementation": attention},
    }
    found = merged(ours, below(config, model_of(role))) | _adapter(config, role)
    return HFModelConfig(**found | {"use_remove_padding": removes_padding(config)})


def _adapter(config: RunConfig, role: Role) -> dict[str, Any]:
    """Of the policy alone: its reference is the same model with the adapter off, and a critic is trained whole."""
    lora = config.model.lora
    if lora is None or role != "actor":
        return {}
    return {
        "lora_rank": lora.lora_rank,
        "lora_alpha": lora.lora_alpha,
        "target_modules": lora.target_modules,
        "exclude_modules": lora.exclude_modules,
        "lora_adapter_path": lora.path,
    }


def _engine_config(config: RunConfig, role: Role, forward_only: bool) -> Any:
    from verl.workers.config import FSDPEngineConfig

    trainer = config.trainer
    compiles = trainer.use_torch_compile
    ours: dict[str, Any] = {
        "strategy": trainer.trainer_strategy,
        "use_torch_compile": not on_cpu(config) if compiles is None else compiles,
        "entropy_from_logits_with_chunking": trainer.entropy_from_logits_with_chunking,
        "ulysses_sequence_parallel_size": trainer.ulysses_sequence_parallel_size,
        "param_offload": trainer.param_offload,
        "optimizer_offload": trainer.optimizer_offload,
        "offload_policy": trainer.offload_policy,
        "mixed_precision": {"param_dtype": trainer.param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }
    owned = {
        "forward_only": forward_only,
        "use_dynamic_bsz": is_dynamic(config, role),
        "max_token_len_per_gpu": token_budget(config, role),
        "infer_max_token_len_per_gpu": token_budget(config, role, is_forward=True),
        "use_remove_padding": removes_padding(config),
    }
    return FSDPEngineConfig(**merged(ours, below(config, engine_of(role))) | owned)


def _optimizer_config(config: RunConfig, role: Role) -> Any:
    """Of the reference on the CPU it is the policy's, and never used."""
    from verl.workers.config import FSDPOptimizerConfig

    optimizer, steps = config.algorithm.optimizer, schedule_steps(config)
    schedule = critic_schedule(config) if role == "critic" else policy_schedule(config)
    if steps is None and schedule.needs_total:
        raise ValueError(
            f"{next(iter(who_needs_a_total(config)))} needs the number of steps, which only `trinity run` counts: set "
            "buffer.total_steps, or algorithm.optimizer.total_training_steps"
        )
    ours: dict[str, Any] = {name: getattr(schedule, name) for name in Schedule.__dataclass_fields__}
    ours |= {"clip_grad": config.trainer.grad_clip, "total_training_steps": -1 if steps is None else steps}
    if role != "critic":
        named = OPTIMIZERS.get(optimizer.optimizer_type, optimizer.optimizer_type)
        ours |= {"optimizer": named, "betas": optimizer.betas, "weight_decay": optimizer.weight_decay}
    found = ours | below(config, "critic.optim" if role == "critic" else f"{place_of('actor')}.optim")
    betas = {"betas": tuple(found["betas"])} if "betas" in found else {}
    return FSDPOptimizerConfig(**found | betas)
