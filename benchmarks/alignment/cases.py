"""What is compared: one training, written down once as our configuration and once as veRL's overrides."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKEN_BUDGET = 16384


@dataclass(frozen=True)
class Scale:
    """The models and the size of a step. `critic_path` has a value head, or the two would begin differently."""

    model_path: Path
    critic_path: Path
    prompts: int
    group: int
    steps: int
    lr: float
    critic_lr: float


@dataclass(frozen=True)
class Case:
    """One training. Where `recomputes`, the ratio starts from the trainer's own log-probs, else from the sampler's."""

    name: str
    is_ppo: bool
    recomputes: bool


CASES = (
    Case("GRPO, KL loss low_var_kl, own log-probs", is_ppo=False, recomputes=True),
    Case("GRPO, KL loss low_var_kl, sampler's log-probs", is_ppo=False, recomputes=False),
    Case("PPO, critic with GAE, own log-probs", is_ppo=True, recomputes=True),
    Case("PPO, critic with GAE, sampler's log-probs", is_ppo=True, recomputes=False),
)


def our_tree(case: Case | None, scale: Scale) -> dict[str, Any]:
    """Our configuration of a case; without one, that of the workers which serve them all: critic and reference."""
    is_ppo, recomputes = (True, True) if case is None else (case.is_ppo, case.recomputes)
    has_kl = case is None or not is_ppo
    return {
        "project": "benchmarks",
        "name": "alignment",
        "model": {
            "model_path": str(scale.model_path),
            "critic_model_path": str(scale.critic_path),
            "max_model_len": 512,
            "max_response_tokens": 256,
        },
        "cluster": {"gpu_per_node": 0, "trainer_ranks": 1},
        "algorithm": {
            "algorithm_type": "ppo" if is_ppo else "grpo",
            "repeat_times": scale.group,
            "advantage_fn": "ppo" if is_ppo else "grpo_verl",
            "advantage_fn_args": {"gamma": 0.99, "lam": 0.95} if is_ppo else {},
            "kl_penalty_fn": "none",
            "kl_loss_fn": "low_var_kl" if has_kl else "none",
            "kl_loss_fn_args": {"kl_coef": 0.05} if has_kl else {},
            "entropy_loss_fn": "default",
            "entropy_loss_fn_args": {"entropy_coef": 0.01},
            "loss_agg_mode": "token-mean",
            "bypass_old_logprobs": not recomputes,
            "optimizer": {
                "lr": scale.lr,
                "lr_warmup_steps": 1,
                "lr_scheduler_type": "cosine",
                "min_lr_ratio": 0.1,
                "weight_decay": 0.1,
            },
        },
        "buffer": {"batch_size": scale.prompts, "total_steps": scale.steps},
        "explorer": {"rollout_model": {"dtype": "float32"}},
        "trainer": {
            "trainer_type": "verl",
            "trainer_strategy": "fsdp2",
            "param_dtype": "fp32",
            "grad_clip": 0.5,
            "use_remove_padding": False,
            "max_token_len_per_gpu": TOKEN_BUDGET,
            "trainer_config": {"critic": {"optim": {"lr": scale.critic_lr}, "grad_clip": 0.5, "cliprange_value": 0.1}},
        },
    }


def their_overrides(case: Case | None, scale: Scale) -> list[str]:
    """The same as a veRL user writes it, over veRL's `ppo_trainer.yaml`."""
    is_ppo = case is None or case.is_ppo
    has_kl = case is None or not is_ppo
    actor, critic = "actor_rollout_ref.actor", "critic"
    mixed = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
    plain = [
        f"{each}.model.{key}"
        for each in ("actor_rollout_ref", critic)
        for key in ("use_remove_padding=False", "enable_gradient_checkpointing=False")
    ]
    engines = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
    return [
        f"algorithm.adv_estimator={'gae' if is_ppo else 'grpo'}",
        "algorithm.gamma=0.99",
        "algorithm.lam=0.95",
        "algorithm.use_kl_in_reward=False",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={scale.group}",
        f"actor_rollout_ref.model.path={scale.model_path}",
        f"critic.model.path={scale.critic_path}",
        *(f"+{each}.model.override_config.attn_implementation=sdpa" for each in ("actor_rollout_ref", critic)),
        *plain,
        *(f"+{engine}.mixed_precision={mixed}" for engine in engines),
        *(f"{engine}.use_torch_compile=False" for engine in engines),
        # veRL's forward-only engine offloads from an accelerator: without one the reference is an engine never stepped
        "actor_rollout_ref.ref.fsdp_config.forward_only=False",
        f"+actor_rollout_ref.ref.optim=${{{actor}.optim}}",
        *(f"{each}.strategy=fsdp2" for each in (actor, critic)),
        *(f"{each}.use_dynamic_bsz=True" for each in (actor, critic)),
        *(f"{each}.ppo_max_token_len_per_gpu={TOKEN_BUDGET}" for each in (actor, critic)),
        *(f"{each}.ppo_mini_batch_size={scale.prompts}" for each in (actor, critic)),
        *(f"{each}.grad_clip=0.5" for each in (actor, critic)),
        *(f"{each}.optim.clip_grad=0.5" for each in (actor, critic)),
        f"{actor}.use_kl_loss={has_kl}",
        f"{actor}.kl_loss_coef=0.05",
        f"{actor}.kl_loss_type=low_var_kl",
        f"{actor}.entropy_coeff=0.01",
        f"{actor}.optim.lr={scale.lr}",
        f"{actor}.optim.lr_warmup_steps=1",
        f"{actor}.optim.lr_scheduler_type=cosine",
        f"{actor}.optim.min_lr_ratio=0.1",
        f"{actor}.optim.weight_decay=0.1",
        f"{actor}.optim.total_training_steps={scale.steps}",
        f"critic.optim.lr={scale.critic_lr}",
        f"critic.optim.total_training_steps={scale.steps}",
        "critic.cliprange_value=0.1",
    ]
