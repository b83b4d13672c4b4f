#!/usr/bin/env bash
# Arrays of keys, a case over devices, defaults of defaults, and a launcher in a variable.
set -xeuo pipefail

DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
BACKEND=${BACKEND:-sglang}
MODEL=${MODEL:-Qwen/Qwen3-8B}
NAME=${NAME:-$(basename "$MODEL")_${BACKEND}_$(date +%Y%m%d)}
prompt_tokens=$((1024 * 2))
response_tokens=$((prompt_tokens * 4))

case "${DEVICE}" in
    gpu | cuda)
        gpus=${GPUS:-${GPUS_PER_NODE:-8}}
        ;;
    npu)
        gpus=16
        export HCCL_TIMEOUT=2400
        ;;
    *)
        echo "no such device: ${DEVICE}" >&2
        exit 1
        ;;
esac

DATA=(
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/dapo-math-17k.parquet']"
    data.val_files=$HOME/data/aime-2024.parquet
    data.train_batch_size=128 # prompts
    data.max_prompt_length=${prompt_tokens}
    data.max_response_length=${response_tokens}
)
ALGORITHM=(
    algorithm.adv_estimator=rloo
    actor_rollout_ref.rollout.n=8
)
if [ "$BACKEND" = sglang ]; then
    ALGORITHM+=(+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3)
fi
[[ $gpus -ge 8 && -z "${SMALL:-}" ]] && ALGORITHM+=("actor_rollout_ref.rollout.tensor_model_parallel_size=2")

LAUNCH=(python3)
if [ "${WITH_UV:-1}" != 0 ] && { [ "$BACKEND" = vllm ] || [ "$BACKEND" = sglang ]; }; then
    uv sync --frozen
    LAUNCH=(uv run python3)
fi

"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${ALGORITHM[@]}" \
    # actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.rollout.name=$BACKEND \
    trainer.experiment_name=${NAME} \
    trainer.logger=['console','tensorboard'] \
    trainer.n_gpus_per_node=$gpus \
    trainer.nnodes=${WORLD:-$CLUSTER_NODES} "$@" 2>&1 | tee train.log
