"""What `trainer.trainer_config` says by veRL's names is checked before anything starts."""

from collections.abc import Callable

import pytest

from services.config.availability import notices, unavailable
from services.config.load import Loaded

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

PPO = "algorithm.algorithm_type=ppo"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [PPO, "trainer.trainer_config.critic.optim.lr=0"],
            "trainer.trainer_config.critic.optim.lr=0 is refused: use a number above 0",
        ),
        (
            [PPO, "trainer.trainer_config.critic.cliprange_value=wide"],
            "trainer.trainer_config.critic.cliprange_value=wide is refused: use a number above 0",
        ),
        (
            [PPO, "trainer.trainer_config.critic.ppo_micro_batch_size_per_gpu=1.5"],
            "trainer.trainer_config.critic.ppo_micro_batch_size_per_gpu=1.5 is refused: use a whole number, 1 or more",
        ),
        (
            [PPO, "trainer.trainer_config.critic.optim.lr_scheduler_type=linear"],
            "trainer.trainer_config.critic.optim.lr_scheduler_type=linear is not known: use constant or cosine",
        ),
        (
            [PPO, "trainer.critic_warmup=2", "trainer.trainer_config.trainer.critic_warmup=3"],
            "trainer.trainer_config.trainer.critic_warmup=3 and trainer.critic_warmup=2: keep one of them",
        ),
        ([PPO, "trainer.critic_warmup=-1"], "trainer.critic_warmup=-1 is too small: use 0 or more"),
        (
            ["trainer.critic_warmup=2"],
            "trainer.critic_warmup=2 trains a critic alone, and algorithm_type=grpo has none: use 0, or "
            "algorithm_type=ppo",
        ),
    ],
)
def test_what_verl_would_choke_on_is_refused(refused: Refuse, overrides: list[str], message: str) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


def test_a_critic_can_be_given_verls_own_keys(loaded: Load) -> None:
    critic = "{optim: {lr: 1e-5, weight_decay: 0.0}, model: {fsdp_config: {param_offload: true}}}"
    config = loaded(PPO, f"trainer.trainer_config={{critic: {critic}, trainer: {{critic_warmup: 3}}}}").config
    assert unavailable(config) == []
    assert config.trainer.warmup_of_critic == 3


def test_a_correction_by_verls_keys_is_answered_with_the_loss_that_is_the_same(loaded: Load) -> None:
    config = loaded("algorithm.rollout_correction={rollout_is: sequence, rollout_is_threshold: 3.0}").config
    assert unavailable(config) == [
        "not available yet: algorithm.rollout_correction (set algorithm.policy_loss_fn=tis with level sequence and "
        "upper 3.0 instead: the same weights)"
    ]


def test_a_loss_scale_that_is_always_right_is_noticed(loaded: Load) -> None:
    (notice,) = notices(loaded("trainer.fix_actor_microbatch_loss_scale=true").config)
    assert notice.endswith("has no effect: the loss is always normalised over the whole batch")
