"""veRL's own configuration objects, made from the run's. The only place that knows both vocabularies."""

import importlib.util
import math
from typing import Any, Literal

from services.config.keys import split
from services.config.tree import RunConfig
from services.trainer.backends.packing import Layout

Role = Literal["actor", "reference", "critic"]

CRITIC_LR = 1e-5
CLIPRANGE_VALUE = 0.5
_ATTENTION_CPU = "sdpa"


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
        checkpoint_config=CheckpointConfig(),
    )


def layout(config: RunConfig, role: Role, together: int = 1) -> Layout:
    """How batches are parted for the models of a role; `together` sequences in a row stay together."""
    size = _override(config, role, "ppo_micro_batch_size_per_gpu")
    return Layout(
        ranks=max(1, config.trainer_ranks // config.trainer.ulysses_sequence_parallel_size),
        token_budget=token_budget(config),
        micro_batch_size=None if is_dynamic(config) else int(size or config.train_batch_size),
        together=together,
    )


def token_budget(config: RunConfig) -> int:
    """Tokens of one micro-batch; as in Trinity-RFT twice the model length, shared by the sequence-parallel ranks."""
    given = _override(config, "actor", "ppo_max_token_len_per_gpu") or config.trainer.max_token_len_per_gpu
    return int(given or math.ceil(2 * config.max_model_len / config.trainer.ulysses_sequence_parallel_size))


def is_dynamic(config: RunConfig) -> bool:
    """Whether micro-batches are made by their tokens rather than their number of sequences."""
    given = _override(config, "actor", "use_dynamic_bsz")
    return config.trainer.use_dynamic_bsz if given is None else bool(given)


def cliprange_value(config: RunConfig) -> float:
    """How far a value may move in one step before its loss is clipped."""
    given = _override(config, "critic", "cliprange_value")
    return CLIPRANGE_VALUE if given is None else float(given)


def model_path(config: RunConfig, role: Role) -> str:
    """The model that a role begins from."""
    if role != "critic":
        return config.model.model_path
    return str(_override(config, role, "model.path") or config.model.critic_model_path or config.model.model_path)


def on_cpu(config: RunConfig) -> bool:
    return config.cluster.gpu_per_node == 0


def removes_padding(config: RunConfig) -> bool:
    """Padding is removed only where flash-attention can work on packed sequences."""
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return config.trainer.use_remove_padding and has_flash and not on_cpu(config)


def _model_config(config: RunConfig, role: Role) -> Any:
    from verl.workers.config import HFModelConfig

    attention = {"attn_implementation": _ATTENTION_CPU} if not removes_padding(config) else {}
    checkpointing = _override(config, role, "model.enable_gradient_checkpointing")
    return HFModelConfig(
        path=model_path(config, role),
        use_remove_padding=removes_padding(config),
        enable_gradient_checkpointing=not on_cpu(config) if checkpointing is None else bool(checkpointing),
        trust_remote_code=config.trainer.trust_remote_code or config.model.trust_remote_code,
        override_config=attention,
    )


def _engine_config(config: RunConfig, role: Role, forward_only: bool) -> Any:
    from verl.workers.config import FSDPEngineConfig

    trainer = config.trainer
    return FSDPEngineConfig(
        strategy=trainer.trainer_strategy,
        fsdp_size=-1,
        forward_only=forward_only,
        use_torch_compile=not on_cpu(config),
        use_dynamic_bsz=is_dynamic(config),
        entropy_from_logits_with_chunking=bool(_override(config, "actor", "entropy_from_logits_with_chunking")),
        max_token_len_per_gpu=token_budget(config),
        infer_max_token_len_per_gpu=token_budget(config),
        ulysses_sequence_parallel_size=trainer.ulysses_sequence_parallel_size,
        use_remove_padding=removes_padding(config),
        param_offload=_offloads(config, role, "param_offload"),
        optimizer_offload=_offloads(config, role, "optimizer_offload"),
        offload_policy=trainer.offload_policy,
        mixed_precision={"param_dtype": trainer.param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )


def _offloads(config: RunConfig, role: Role, what: str) -> bool:
    section = "model.fsdp_config" if role == "critic" else "fsdp_config"
    given = _override(config, role, f"{section}.{what}")
    return bool(getattr(config.trainer, what) if given is None else given)


def _optimizer_config(config: RunConfig, role: Role) -> Any:
    from verl.workers.config import FSDPOptimizerConfig

    optimizer = config.algorithm.optimizer
    asked = {
        "lr": optimizer.lr,
        "betas": optimizer.betas,
        "weight_decay": optimizer.weight_decay,
        "lr_warmup_steps": optimizer.lr_warmup_steps,
        "lr_warmup_steps_ratio": optimizer.lr_warmup_steps_ratio,
        "min_lr_ratio": optimizer.min_lr_ratio,
        "lr_scheduler_type": optimizer.lr_scheduler_type,
    }
    if role == "critic":
        asked = {"lr": CRITIC_LR, **(_override(config, role, "optim") or {})}
    clip = _override(config, role, "grad_clip") if role == "critic" else None
    return FSDPOptimizerConfig(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()},
        clip_grad=config.trainer.grad_clip if clip is None else float(clip),
        total_training_steps=config.total_steps or -1,
    )


def _override(config: RunConfig, role: Role, key: str) -> Any:
    """What `trainer.trainer_config` says of a role, in veRL's own tree; None where it says nothing."""
    section = "critic" if role == "critic" else "actor_rollout_ref"
    place = key if role == "critic" or key.startswith("model.") else f"actor.{key}"
    found: Any = config.trainer.trainer_config
    for part in split(f"{section}.{place}"):
        found = found.get(part) if isinstance(found, dict) else None
    return found
