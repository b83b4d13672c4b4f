"""What may change about training: the algorithm, the optimizer, and how the trainer is spread over devices."""

from typing import Any, Literal

from pydantic import Field

from services.config.rollout_correction import RolloutCorrection
from services.config.section import Section

Precision = Literal["fp32", "bf16"]


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule.

    `total_training_steps` are those that the schedule is laid out for; unset, those of the run. `clip_grad` is another
    name of `trainer.grad_clip`.
    """

    lr: float = 1e-6
    lr_warmup_steps: int = -1
    lr_warmup_steps_ratio: float = 0.0
    min_lr_ratio: float = 0.01
    num_cycles: float = 0.5
    total_training_steps: int | None = None
    warmup_style: str | None = None
    lr_scheduler_type: str = "constant"
    optimizer_type: str = "adam"
    betas: list[float] = Field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.01
    clip_grad: float = 1.0


class AlgorithmConfig(Section):
    """The algorithm and its parts; an unset part is the one that `algorithm_type` names."""

    algorithm_type: str = "ppo"
    repeat_times: int | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    sample_strategy: str | None = None
    sample_strategy_args: dict[str, Any] | None = None
    advantage_fn: str | None = None
    advantage_fn_args: dict[str, Any] | None = None
    kl_penalty_fn: str | None = None
    kl_penalty_fn_args: dict[str, Any] | None = None
    policy_loss_fn: str | None = None
    policy_loss_fn_args: dict[str, Any] | None = None
    kl_loss_fn: str | None = None
    kl_loss_fn_args: dict[str, Any] | None = None
    entropy_loss_fn: str | None = None
    entropy_loss_fn_args: dict[str, Any] | None = None
    loss_agg_mode: str | None = None
    enable_router_replay: bool = False
    bypass_old_logprobs: bool | None = None
    rollout_correction: RolloutCorrection | None = None


class MegatronParallelConfig(Section):
    """Parallelism of the Megatron strategy."""

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    context_parallel_size: int = 1
    sequence_parallel: bool = True


class TrainerConfig(Section):
    """The trainer. `param_dtype` is the precision it computes in, `weights_dtype` the one it writes for explorers.

    A run begins from the checkpoint at `resume_from_path`, a directory `global_step_N` of another run: its weights,
    optimizer and schedule. `enable_gradient_checkpointing` and `use_torch_compile` are on where there are GPUs, unless
    they are set.
    """

    name: str = "trainer"
    trainer_type: str = "verl"
    trainer_strategy: str = "fsdp2"
    param_dtype: Precision = "bf16"
    weights_dtype: Precision | None = None
    save_interval: int = 0
    enable_preview: bool = False
    total_steps: int | None = None
    save_hf_checkpoint: Literal["last", "always", "never"] = "last"
    resume_from_path: str = ""
    grad_clip: float = 1.0
    use_dynamic_bsz: bool = True
    use_remove_padding: bool = True
    balance_batch: bool = True
    critic_warmup: int = 0
    max_token_len_per_gpu: int | None = None
    ulysses_sequence_parallel_size: int = 1
    enable_gradient_checkpointing: bool | None = None
    entropy_from_logits_with_chunking: bool = False
    use_torch_compile: bool | None = None
    fix_actor_microbatch_loss_scale: bool = False
    param_offload: bool = False
    optimizer_offload: bool = False
    grad_offload: bool = False
    offload_policy: bool = False
    save_strategy: Literal["single_thread", "single_process", "single_node", "unrestricted"] = "unrestricted"
    max_checkpoints_to_keep: int = 0
    megatron: MegatronParallelConfig = MegatronParallelConfig()
    trust_remote_code: bool = False
    trainer_config: dict[str, Any] = Field(default_factory=dict)
    trainer_config_path: str = ""


class ReplayConfig(Section):
    """Where a trainer takes its experiences from, when it is not its own run that samples them.

    The experience stream of run `source` (`<project>/<name>`, at `source_url`, else on the run's own bus) is read from
    `from_sequence` to `to_sequence`, or, with `follow`, as long as that run lives. It begins from `checkpoint`, a
    directory `global_step_N`, or from the model of the configuration, and ends at `to_step` or with the stream. `pace`
    `live` takes as long as the original took; a step whose absolute `actor/ppo_kl` is above `max_kl` is told as
    off-policy. At a sequence of `short_batches` the original closed a batch before it was full. `is_exact` where the
    replay is to make the original's own weights again, and so refuses what the original has refused.
    """

    source: str
    source_url: str | None = None
    from_sequence: int = 1
    to_sequence: int | None = None
    checkpoint: str | None = None
    to_step: int | None = None
    follow: bool = False
    pace: Literal["full", "live"] = "full"
    max_kl: float = 0.1
    short_batches: list[int] = Field(default_factory=list)
    is_exact: bool = False
