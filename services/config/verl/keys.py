"""veRL's keys below `trainer.trainer_config`: where each belongs, and what becomes of it. `*` stands for any text.

Every key that veRL knows and no table here names is handed to veRL as it is.
"""

from services.config.verl.fields import ACTOR, CHECKPOINT, CRITIC, ENGINE, MODEL, OPTIMIZER, REFERENCE, TRAINER

ACTOR_KEY = "actor_rollout_ref.actor"
MODEL_KEY = "actor_rollout_ref.model"
REFERENCE_KEY = "actor_rollout_ref.ref"

SECTIONS: dict[str, dict[str, str]] = {
    MODEL_KEY: MODEL,
    ACTOR_KEY: ACTOR,
    f"{ACTOR_KEY}.optim": OPTIMIZER,
    f"{ACTOR_KEY}.fsdp_config": ENGINE,
    f"{ACTOR_KEY}.checkpoint": CHECKPOINT,
    REFERENCE_KEY: REFERENCE,
    f"{REFERENCE_KEY}.fsdp_config": ENGINE,
    "critic": CRITIC,
    "critic.model": MODEL,
    "critic.optim": OPTIMIZER,
    "critic.fsdp": ENGINE,
    "critic.checkpoint": CHECKPOINT,
    "trainer": TRAINER,
}
"""The fields of each section of veRL's tree that is read."""

ENGINE_OF = {
    ACTOR_KEY: f"{ACTOR_KEY}.fsdp_config",
    REFERENCE_KEY: f"{REFERENCE_KEY}.fsdp_config",
    "critic": "critic.fsdp",
}

_BESIDE_THE_ENGINE = (
    "strategy",
    "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking",
    "entropy_from_logits_chunk_size",
    "entropy_checkpointing",
    "pad_to_length",
    "use_torch_compile",
)
"""What veRL reads beside the engine's section and means for the engine."""

MOVED: dict[str, str] = {
    **{f"{role}.{name}": f"{engine}.{name}" for role, engine in ENGINE_OF.items() for name in _BESIDE_THE_ENGINE},
    **{
        f"{role}.{old}": f"{role}.optim.{name}"
        for role in (ACTOR_KEY, "critic")
        for old, name in (
            ("grad_clip", "clip_grad"),
            ("optim.grad_clip", "clip_grad"),
            ("optim.warmup_style", "lr_scheduler_type"),
            ("optim.lr_scheduler", "lr_scheduler_type"),
        )
    },
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.fsdp_config": "critic.fsdp",
    f"{ACTOR_KEY}.use_remove_padding": f"{MODEL_KEY}.use_remove_padding",
}
"""Other places and older spellings of a key, or of a whole section, and the place where it is read."""

OF_ALL_RANKS: dict[str, str] = {
    f"{ACTOR_KEY}.ppo_micro_batch_size": f"{ACTOR_KEY}.ppo_micro_batch_size_per_gpu",
    f"{REFERENCE_KEY}.log_prob_micro_batch_size": f"{REFERENCE_KEY}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
}
"""Sizes that older versions of veRL took for all ranks together, and those of one rank."""

_SCHEDULE = (
    "lr",
    "lr_warmup_steps",
    "lr_warmup_steps_ratio",
    "min_lr_ratio",
    "num_cycles",
    "lr_scheduler_type",
    "total_training_steps",
    "betas",
    "weight_decay",
)

SAME: dict[str, str] = {
    **{f"{ACTOR_KEY}.optim.{name}": f"algorithm.optimizer.{name}" for name in _SCHEDULE},
    f"{ACTOR_KEY}.optim.clip_grad": "trainer.grad_clip",
    f"{ACTOR_KEY}.use_dynamic_bsz": "trainer.use_dynamic_bsz",
    f"{ACTOR_KEY}.ppo_max_token_len_per_gpu": "trainer.max_token_len_per_gpu",
    f"{ACTOR_KEY}.fsdp_config.entropy_from_logits_with_chunking": "trainer.entropy_from_logits_with_chunking",
    f"{ACTOR_KEY}.fsdp_config.mixed_precision.param_dtype": "trainer.param_dtype",
    f"{ACTOR_KEY}.fsdp_config.offload_policy": "trainer.offload_policy",
    f"{ACTOR_KEY}.fsdp_config.use_torch_compile": "trainer.use_torch_compile",
    f"{MODEL_KEY}.enable_gradient_checkpointing": "trainer.enable_gradient_checkpointing",
    f"{MODEL_KEY}.trust_remote_code": "trainer.trust_remote_code",
    f"{MODEL_KEY}.use_remove_padding": "trainer.use_remove_padding",
    "critic.model.path": "model.critic_model_path",
    "critic.model.use_remove_padding": "trainer.use_remove_padding",
    "critic.use_dynamic_bsz": "trainer.use_dynamic_bsz",
    **{
        f"{engine}.{name}": f"trainer.{ours}"
        for engine in ENGINE_OF.values()
        for name, ours in (
            ("strategy", "trainer_strategy"),
            ("ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"),
        )
    },
    "trainer.balance_batch": "trainer.balance_batch",
    "trainer.critic_warmup": "trainer.critic_warmup",
}
"""Keys that have one of ours for the same thing: either may be given, and where both are they must agree."""

OURS: dict[str, str] = {
    f"{ACTOR_KEY}.ppo_mini_batch_size": "buffer.batch_size (tasks) or buffer.train_batch_size (experiences)",
    "critic.ppo_mini_batch_size": "buffer.batch_size (tasks) or buffer.train_batch_size (experiences)",
    f"{ACTOR_KEY}.clip_ratio": "algorithm.policy_loss_fn_args.clip_range",
    f"{ACTOR_KEY}.clip_ratio_low": "algorithm.policy_loss_fn_args.clip_range_low",
    f"{ACTOR_KEY}.clip_ratio_high": "algorithm.policy_loss_fn_args.clip_range_high",
    f"{ACTOR_KEY}.clip_ratio_c": "algorithm.policy_loss_fn_args.clip_ratio_c",
    f"{ACTOR_KEY}.tau_*": "algorithm.policy_loss_fn=sapo and its policy_loss_fn_args",
    f"{ACTOR_KEY}.policy_loss.*": "algorithm.policy_loss_fn and policy_loss_fn_args",
    f"{ACTOR_KEY}.loss_agg_mode": "algorithm.loss_agg_mode",
    f"{ACTOR_KEY}.loss_scale_factor": "algorithm.loss_agg_mode=seq-mean-token-sum-norm",
    f"{ACTOR_KEY}.entropy_coeff": "algorithm.entropy_loss_fn_args.entropy_coef",
    f"{ACTOR_KEY}.use_kl_loss": "algorithm.kl_loss_fn",
    f"{ACTOR_KEY}.kl_loss_coef": "algorithm.kl_loss_fn_args.kl_coef",
    f"{ACTOR_KEY}.kl_loss_type": "algorithm.kl_loss_fn",
    "critic.loss_agg_mode": "nothing: the value loss is a mean over tokens",
    "critic.loss_scale_factor": "nothing: the value loss is a mean over tokens",
    "critic.enable": "algorithm.algorithm_type=ppo, or an advantage_fn that reads values",
    "*.rollout_n": "algorithm.repeat_times",
    f"{MODEL_KEY}.path": "model.model_path",
    f"{MODEL_KEY}.custom_chat_template": "model.custom_chat_template",
    f"{MODEL_KEY}.lora*": "model.lora_configs",
    f"{MODEL_KEY}.target_modules": "model.lora_configs[0].target_modules",
    f"{MODEL_KEY}.exclude_modules": "model.lora_configs[0].exclude_modules",
    "actor_rollout_ref.rollout.n": "algorithm.repeat_times",
    "actor_rollout_ref.rollout.temperature": "model.temperature",
    "actor_rollout_ref.rollout.top_p": "model.top_p",
    "actor_rollout_ref.rollout.top_k": "model.top_k",
    "actor_rollout_ref.rollout.prompt_length": "model.max_prompt_tokens",
    "actor_rollout_ref.rollout.response_length": "model.max_response_tokens",
    "actor_rollout_ref.rollout.name": "explorer.rollout_model.engine_type",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "explorer.rollout_model.tensor_parallel_size",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "explorer.rollout_model.gpu_memory_utilization",
    "actor_rollout_ref.rollout.val_kwargs.*": "rollout_args of buffer.explorer_input.eval_tasksets[]",
    "actor_rollout_ref.rollout.*": "explorer.rollout_model",
    "data.train_files": "buffer.explorer_input.tasksets[].path",
    "data.val_files": "buffer.explorer_input.eval_tasksets[].path",
    "data.train_batch_size": "buffer.batch_size and synchronizer.sync_interval",
    "data.max_prompt_length": "model.max_prompt_tokens",
    "data.max_response_length": "model.max_response_tokens",
    "data.*": "buffer.explorer_input",
    "algorithm.adv_estimator": "algorithm.advantage_fn",
    "algorithm.gamma": "algorithm.advantage_fn_args.gamma",
    "algorithm.lam": "algorithm.advantage_fn_args.lam",
    "algorithm.use_kl_in_reward": "algorithm.kl_penalty_fn",
    "algorithm.kl_penalty": "algorithm.kl_penalty_fn",
    "algorithm.kl_ctrl.*": "algorithm.kl_penalty_fn_args",
    "algorithm.*": "algorithm",
    "reward_model.*": "explorer.auxiliary_models",
    "reward.*": "buffer.explorer_input.default_reward_fn_type",
    "custom_reward_function.*": "buffer.explorer_input.default_reward_fn_type and plugin_dirs",
    "distillation.*": "algorithm.algorithm_type=on_policy_distill",
    "trainer.total_epochs": "buffer.total_epochs",
    "trainer.total_training_steps": "buffer.total_steps",
    "trainer.project_name": "project",
    "trainer.experiment_name": "name",
    "trainer.logger": "monitor.monitor_type",
    "trainer.nnodes": "cluster.node_num",
    "trainer.n_gpus_per_node": "cluster.gpu_per_node",
    "trainer.save_freq": "trainer.save_interval",
    "trainer.test_freq": "explorer.eval_interval",
    "trainer.val_before_train": "explorer.eval_on_startup",
    "trainer.val_only": "mode=bench",
    "trainer.resume_mode": "continue_from_checkpoint",
    "trainer.resume_from_path": "trainer.resume_from_path",
    "trainer.default_local_dir": "checkpoint_root_dir",
    "trainer.max_actor_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
    "trainer.remove_previous_ckpt_in_save": "trainer.max_checkpoints_to_keep",
    "trainer.max_critic_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
    "*.fsdp*.use_dynamic_bsz": "trainer.use_dynamic_bsz",
    "*.fsdp*.max_token_len_per_gpu": "trainer.max_token_len_per_gpu",
    "*.fsdp*.micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu beside that section",
    "*.fsdp*.infer_max_token_len_per_gpu": "ppo_infer_max_token_len_per_gpu beside that section",
    "*.fsdp*.infer_micro_batch_size_per_gpu": "ppo_infer_micro_batch_size_per_gpu beside that section",
    "*.fsdp*.use_remove_padding": "trainer.use_remove_padding",
    "critic.optim.total_training_steps": "algorithm.optimizer.total_training_steps",
    "critic.model.trust_remote_code": "trainer.trust_remote_code",
}
"""Keys that this project owns, and what to set in their place. The first pattern that fits a key decides."""

IDLE: dict[str, str] = {
    "actor_rollout_ref.hybrid_engine": "explorers and the trainer are processes of their own",
    "actor_rollout_ref.rollout.log_prob_*": "log-probs are computed in the micro-batches of the trainer",
    "*.shuffle": "a step takes all of its experiences at once, and their order does not matter",
    "*.data_loader_seed": "a step takes all of its experiences at once, and their order does not matter",
    "critic.forward_*": "use critic.ppo_infer_micro_batch_size_per_gpu or critic.ppo_infer_max_token_len_per_gpu",
    "*.fsdp*.dtype": "FSDP computes in trainer.param_dtype",
    f"{REFERENCE_KEY}.fsdp_config.param_offload": "where there are GPUs the reference always waits in CPU memory",
    f"{REFERENCE_KEY}.fsdp_config.optimizer_offload": "the reference has no optimizer",
    f"{REFERENCE_KEY}.fsdp_config.offload_policy": "where there are GPUs the reference always waits in CPU memory",
    "*.checkpoint.async_save": "FSDP saves while the trainer waits",
    "*.checkpoint.save_lora_only": "a checkpoint holds all that a resumed run needs",
    "trainer.ray_wait_register_center_timeout": "nothing registers with Ray",
    "trainer.device": "cluster.gpu_per_node decides",
    "trainer.use_v1": "explorers and the trainer are processes of their own",
}
"""Keys that are accepted and change nothing, with the reason that the user is told."""

REFUSED: dict[str, str] = {
    "*.qat*": "quantised training is not available",
    "*.fsdp*.router_replay*": "router replay is not available",
    "*.fsdp*.turbo_config*": "strategy fsdp_turbo is not available",
    "*.use_fused_kernels": "each sequence has a temperature of its own, which veRL's fused kernels cannot take",
    "*.fused_kernel_options*": "each sequence has a temperature of its own, which veRL's fused kernels cannot take",
    "*.use_prefix_grouper": "prefix grouping is not available",
    "*.freeze_vision_tower": "models of images are not available",
    "*.mtp*": "multi-token prediction is not available",
    "*.profiler*": "veRL's profiler is not available",
    "*.calculate_*": "what the losses read is decided by the algorithm",
    "*.use_rollout_log_probs": "algorithm.bypass_old_logprobs decides",
    "*.fsdp*.forward_only": "the role decides",
    f"{ACTOR_KEY}.engine*": "it is veRL's own",
    "critic.engine*": "it is veRL's own",
    f"{ACTOR_KEY}.model_config*": "it is veRL's own",
    f"{ACTOR_KEY}.global_batch_info*": "it is veRL's own",
    **{
        f"*.model.{name}": "it is veRL's own"
        for name in (
            "local_*",
            "hf_config",
            "generation_config",
            "tokenizer",
            "processor",
            "model_type",
            "load_tokenizer",
            "architectures",
        )
    },
    "critic.model.lora*": "only the policy has an adapter",
    "critic.model.target_*": "only the policy has an adapter",
    "critic.model.exclude_modules": "only the policy has an adapter",
    "critic.model.custom_chat_template": "the critic reads tokens",
    "trainer.*": "this project's launcher and trainer take the place of veRL's",
    "global_profiler.*": "veRL's profiler is not available",
    "ray_kwargs.*": "the variable RAY_ADDRESS names a cluster to join",
    "transfer_queue.*": "experiences travel on the bus",
    "skip.*": "this project's launcher and trainer take the place of veRL's",
    "sandbox_fusion.*": "code is judged by the sandbox of the reward",
}
"""Keys that veRL knows and this trainer cannot follow, and why."""

BELOW: dict[str, tuple[str, ...]] = {
    "mixed_precision": ("param_dtype", "reduce_dtype", "buffer_dtype"),
    "wrap_policy": ("transformer_layer_cls_to_wrap", "min_num_params"),
    "tiled_mlp": ("enabled", "num_shards"),
}
"""What veRL reads below a field that is a mapping; of the others it takes anything."""
