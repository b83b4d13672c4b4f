"""veRL's own configuration objects, made from the run's. The only place that knows both vocabularies."""

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

from services.config.tree import RunConfig

KL_NAMES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "low_var_kl": "low_var_kl", "abs": "abs"}
_ATTENTION_CPU = "sdpa"


@dataclass(frozen=True)
class LossSettings:
    """The clipped policy loss and what is added to it, by veRL's names."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float = 3.0
    loss_agg_mode: str = "token-mean"
    entropy_coeff: float = 0.0
    kl_loss_type: str | None = None
    kl_loss_coef: float = 0.0

    @property
    def uses_reference(self) -> bool:
        return self.kl_loss_type is not None and self.kl_loss_coef > 0


def loss_settings(config: RunConfig) -> LossSettings:
    """The loss of `algorithm`, Trinity-RFT's keys and defaults."""
    algorithm = config.algorithm
    policy = algorithm.policy_loss_fn_args or {}
    clip = float(policy.get("clip_range", 0.2))
    kl_name = algorithm.kl_loss_fn or config.algorithm_type.kl_loss_fn
    kl_args = algorithm.kl_loss_fn_args or {}
    return LossSettings(
        clip_low=float(policy.get("clip_range_low", clip)),
        clip_high=float(policy.get("clip_range_high", clip)),
        clip_c=float(policy.get("clip_ratio_c", 3.0)),
        loss_agg_mode=str(algorithm.loss_agg_mode or policy.get("loss_agg_mode") or "token-mean"),
        entropy_coeff=float((algorithm.entropy_loss_fn_args or {}).get("entropy_coef", 0.0)),
        kl_loss_type=None if kl_name == "none" else KL_NAMES[kl_name],
        kl_loss_coef=float(kl_args.get("kl_coef", 0.001)),
    )


def actor_config(config: RunConfig) -> Any:
    """veRL's `ActorConfig`, which its `ppo_loss` reads."""
    from verl.workers.config import ActorConfig

    loss = loss_settings(config)
    return ActorConfig(
        strategy=config.trainer.trainer_strategy,
        rollout_n=config.repeat_times,
        ppo_mini_batch_size=config.train_batch_size,
        ppo_micro_batch_size_per_gpu=_micro_batch_size(config),
        use_dynamic_bsz=config.trainer.use_dynamic_bsz,
        clip_ratio=loss.clip_low,
        clip_ratio_low=loss.clip_low,
        clip_ratio_high=loss.clip_high,
        clip_ratio_c=loss.clip_c,
        loss_agg_mode=loss.loss_agg_mode,
        entropy_coeff=loss.entropy_coeff,
        use_kl_loss=loss.uses_reference,
        kl_loss_coef=loss.kl_loss_coef,
        kl_loss_type=loss.kl_loss_type or "low_var_kl",
    )


def worker_config(config: RunConfig, forward_only: bool = False) -> Any:
    """veRL's `TrainingWorkerConfig` for one worker group: the actor, or the reference policy (`forward_only`).

    veRL's forward-only engine offloads from an accelerator; on the CPU the reference is an engine never stepped.
    """
    forward_only = forward_only and not on_cpu(config)
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TrainingWorkerConfig

    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=_model_config(config),
        engine_config=_engine_config(config, forward_only),
        optimizer_config=None if forward_only else _optimizer_config(config),
        checkpoint_config=CheckpointConfig(),
    )


def token_budget(config: RunConfig) -> int:
    """Tokens of one micro-batch; as in Trinity-RFT twice the model length, shared by the sequence-parallel ranks."""
    trainer = config.trainer
    return trainer.max_token_len_per_gpu or math.ceil(2 * config.max_model_len / trainer.ulysses_sequence_parallel_size)


def on_cpu(config: RunConfig) -> bool:
    return config.cluster.gpu_per_node == 0


def removes_padding(config: RunConfig) -> bool:
    """Padding is removed only where flash-attention can work on packed sequences."""
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return config.trainer.use_remove_padding and has_flash and not on_cpu(config)


def _model_config(config: RunConfig) -> Any:
    from verl.workers.config import HFModelConfig

    attention = {"attn_implementation": _ATTENTION_CPU} if not removes_padding(config) else {}
    model = _overrides(config).get("model", {})
    return HFModelConfig(
        path=config.model.model_path,
        use_remove_padding=removes_padding(config),
        enable_gradient_checkpointing=bool(model.get("enable_gradient_checkpointing", not on_cpu(config))),
        trust_remote_code=config.trainer.trust_remote_code or config.model.trust_remote_code,
        override_config=attention,
    )


def _engine_config(config: RunConfig, forward_only: bool) -> Any:
    from verl.workers.config import FSDPEngineConfig

    trainer = config.trainer
    offload = _overrides(config).get("actor", {}).get("fsdp_config", {})
    return FSDPEngineConfig(
        strategy=trainer.trainer_strategy,
        fsdp_size=-1,
        forward_only=forward_only,
        use_torch_compile=not on_cpu(config),
        use_dynamic_bsz=trainer.use_dynamic_bsz,
        max_token_len_per_gpu=token_budget(config),
        infer_max_token_len_per_gpu=token_budget(config),
        micro_batch_size_per_gpu=_micro_batch_size(config),
        infer_micro_batch_size_per_gpu=_micro_batch_size(config),
        ulysses_sequence_parallel_size=trainer.ulysses_sequence_parallel_size,
        use_remove_padding=removes_padding(config),
        param_offload=bool(offload.get("param_offload", trainer.param_offload)),
        optimizer_offload=bool(offload.get("optimizer_offload", trainer.optimizer_offload)),
        offload_policy=trainer.offload_policy,
        mixed_precision={"param_dtype": trainer.param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )


def _optimizer_config(config: RunConfig) -> Any:
    from verl.workers.config import FSDPOptimizerConfig

    optimizer = config.algorithm.optimizer
    return FSDPOptimizerConfig(
        lr=optimizer.lr,
        betas=tuple(optimizer.betas),
        weight_decay=optimizer.weight_decay,
        clip_grad=config.trainer.grad_clip,
        lr_warmup_steps=optimizer.lr_warmup_steps,
        lr_warmup_steps_ratio=optimizer.lr_warmup_steps_ratio,
        min_lr_ratio=optimizer.min_lr_ratio,
        lr_scheduler_type=optimizer.lr_scheduler_type,
        total_training_steps=config.total_steps or -1,
    )


def _micro_batch_size(config: RunConfig) -> int:
    size = _overrides(config).get("actor", {}).get("ppo_micro_batch_size_per_gpu")
    return int(size) if size is not None else max(1, config.train_batch_size // config.trainer_ranks)


def _overrides(config: RunConfig) -> dict[str, Any]:
    nested = config.trainer.trainer_config.get("actor_rollout_ref", {})
    return nested if isinstance(nested, dict) else {}
