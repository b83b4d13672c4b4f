#!/usr/bin/env bash
set -euxo pipefail

project_name='DAPO'
exp_name='DAPO-32B'
overlong_len=$((1024 * 4))
answer_tokens=$((1024 * 20))
ROOT=${ROOT:-"${HOME}/verl"}
CKPTS=${CKPTS:-"${ROOT}/ckpts/${project_name}/${exp_name}"}

RAY_DEDUP_LOGS=0 nohup ray job submit --no-wait --working-dir "${PWD}" \
    -- python3 -m recipe.dapo.main_dapo \
    data.train_files="${ROOT}/data/dapo-math-17k.parquet" \
    data.truncation='left' \
    data.train_batch_size=512 \
    data.gen_batch_size=$(expr 512 \* 3) \
    data.max_response_length=${answer_tokens} \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.n=16 \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.max_num_gen_batches=10 \
    algorithm.filter_groups.metric=acc \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.use_token_level_loss=True \
    actor_rollout_ref.model.path="${ROOT}/models/Qwen2.5-32B" \
    +actor_rollout_ref.model.override_config.attention_dropout=0. \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.n=32 \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=${overlong_len} \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    trainer.total_training_steps=200 \
    trainer.nnodes=16 \
    trainer.project_name="${project_name}" \
    trainer.experiment_name="${exp_name}" \
    trainer.default_local_dir="${CKPTS}" &
