"""What `trainer.trainer_config` says by veRL's names is checked before anything starts."""

from collections.abc import Callable

import pytest

from services.config.availability import notices, unavailable
from services.config.load import Loaded
from services.config.verl.tree import below

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

PPO = "algorithm.algorithm_type=ppo"
GIVEN = "trainer.trainer_config."
ACTOR = f"{GIVEN}actor_rollout_ref.actor."


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([PPO, f"{GIVEN}critic.optim.lr=0"], f"{GIVEN}critic.optim.lr=0 is refused: use a number above 0"),
        ([f"{GIVEN}critic.cliprange_value=wide"], f"{GIVEN}critic.cliprange_value=wide is refused: use a number"),
        (
            [f"{GIVEN}critic.ppo_micro_batch_size_per_gpu=1.5"],
            f"{GIVEN}critic.ppo_micro_batch_size_per_gpu=1.5 is refused: use a whole number",
        ),
        ([f"{ACTOR}ppo_epochs=0"], f"{ACTOR}ppo_epochs=0 is refused: use a whole number, 1 or more"),
        (
            [f"{ACTOR}fsdp_config.forward_prefetch=1"],
            f"{ACTOR}fsdp_config.forward_prefetch=1 is refused: use true or false",
        ),
        ([f"{ACTOR}optim.betas=[0.9]"], f"{ACTOR}optim.betas=[0.9] is refused: use a list of two numbers"),
        (
            [f"{ACTOR}fsdp_config.mixed_precision.param_dtype=fp8"],
            f"{ACTOR}fsdp_config.mixed_precision.param_dtype=fp8 is not known: use fp32 or bf16",
        ),
        (
            [f"{GIVEN}critic.optim.lr_scheduler_type=linear"],
            f"{GIVEN}critic.optim.lr_scheduler_type=linear is not known: use constant or cosine",
        ),
    ],
)
def test_a_value_that_verl_would_choke_on_is_refused(refused: Refuse, overrides: list[str], message: str) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("actor_rollout_ref.actor.optim.lr_warmup_step", "did you mean actor_rollout_ref.actor.optim.lr_warmup_steps?"),
        (
            "actor_rollout_ref.actor.fsdp_config.reshard_after_foward",
            "did you mean actor_rollout_ref.actor.fsdp_config.reshard_after_forward?",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.wrap_policy.min_params",
            "did you mean actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params?",
        ),
        ("actor_rolout_ref.actor.grad_clip", "did you mean actor_rollout_ref.actor.grad_clip?"),
        ("actor_rollout_ref.actor.loss_agg_mod", "did you mean actor_rollout_ref.actor.loss_agg_mode?"),
        ("actor_rollout_ref.actor", "it is a section of keys: they stand below it, indented"),
        ("critic.model.fsdp_config.param_ofload", "did you mean critic.model.fsdp_config.param_offload?"),
        ("actor_rollout_ref.param_offload", "did you mean actor_rollout_ref.actor.fsdp_config.param_offload?"),
        ("aktor.anything", "leave it out"),
    ],
)
def test_a_key_that_verl_does_not_know_is_refused_with_the_nearest(refused: Refuse, key: str, advice: str) -> None:
    assert refused(f"{GIVEN}{key}=1") == [f"{GIVEN}{key} is not a key of veRL: {advice}  (override)"]


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("actor_rollout_ref.rollout.n", "algorithm.repeat_times"),
        ("actor_rollout_ref.rollout.max_num_seqs", "explorer.rollout_model"),
        ("actor_rollout_ref.actor.clip_ratio_high", "algorithm.policy_loss_fn_args.clip_range_high"),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            "buffer.batch_size (tasks) or buffer.train_batch_size (experiences)",
        ),
        ("data.train_batch_size", "buffer.batch_size and synchronizer.sync_interval"),
        ("data.anything", "buffer.explorer_input"),
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty_fn_args"),
        ("reward_model.model.path", "explorer.auxiliary_models"),
        ("trainer.total_epochs", "buffer.total_epochs"),
        ("actor_rollout_ref.model.path", "model.model_path"),
        ("critic.fsdp.use_dynamic_bsz", "trainer.use_dynamic_bsz"),
    ],
)
def test_a_key_of_ours_is_refused_with_its_name(refused: Refuse, key: str, ours: str) -> None:
    assert refused(f"{GIVEN}{key}=2") == [f"{GIVEN}{key}=2 is not read from here: set {ours} instead  (override)"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("actor_rollout_ref.model.use_fused_kernels", "each sequence has a temperature of its own"),
        ("actor_rollout_ref.actor.profiler.enable", "veRL's profiler is not available"),
        ("actor_rollout_ref.model.hf_config", "it is veRL's own"),
        ("trainer.val_generations_to_log_to_wandb", "is not a key of veRL"),
        ("trainer.log_val_generations", "this project's launcher"),
    ],
)
def test_what_the_trainer_cannot_follow_is_refused_with_the_reason(refused: Refuse, key: str, reason: str) -> None:
    (problem,) = refused(f"{GIVEN}{key}=true")
    assert reason in problem


@pytest.mark.parametrize("key", ["model.use_fused_kernels", "actor.profiler.enable", "actor.qat.enable"])
def test_what_is_off_need_not_be_followed(loaded: Load, key: str) -> None:
    config = loaded(f"{GIVEN}actor_rollout_ref.{key}=false").config
    assert (notices(config), unavailable(config)) == ([], [])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{ACTOR}grad_clip=2", "trainer.grad_clip=1.5"],
            f"{ACTOR}grad_clip=2 and trainer.grad_clip=1.5 contradict each other: keep one of them",
        ),
        (
            [f"{ACTOR}optim.lr=1e-5", "algorithm.optimizer.lr=1e-6"],
            f"{ACTOR}optim.lr=1e-05 and algorithm.optimizer.lr=1e-06 contradict each other: keep one of them",
        ),
        (
            [PPO, "trainer.critic_warmup=2", f"{GIVEN}trainer.critic_warmup=3"],
            f"{GIVEN}trainer.critic_warmup=3 and trainer.critic_warmup=2 contradict each other: keep one of them",
        ),
        (
            [f"{ACTOR}strategy=fsdp", f"{GIVEN}critic.strategy=fsdp2"],
            f"{GIVEN}critic.strategy=fsdp2 and trainer.trainer_strategy=fsdp contradict each other: keep one of them",
        ),
        (
            [f"{ACTOR}optim.optimizer=RAdam", "algorithm.optimizer.optimizer_type=sgd"],
            f"{ACTOR}optim.optimizer=RAdam and algorithm.optimizer.optimizer_type=sgd contradict each other: keep one "
            "of them",
        ),
        (
            [f"{ACTOR}fsdp_config.param_offload=false", "trainer.param_offload=true"],
            f"{ACTOR}fsdp_config.param_offload=false and trainer.param_offload=true contradict each other: keep one of "
            "them",
        ),
        (
            [f"{GIVEN}critic.fsdp.forward_prefetch=true", f"{GIVEN}critic.model.fsdp_config.forward_prefetch=false"],
            f"{GIVEN}critic.model.fsdp_config.forward_prefetch=false and critic.fsdp.forward_prefetch=true are one "
            "key: keep one",
        ),
    ],
)
def test_two_names_of_one_thing_must_agree(refused: Refuse, overrides: list[str], message: str) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


def test_clipping_has_two_names_which_must_agree(loaded: Load, refused: Refuse) -> None:
    config = loaded("algorithm.optimizer.clip_grad=0.5").config
    assert config.trainer.grad_clip == 0.5
    config = loaded("trainer.grad_clip=0.25").config
    assert config.algorithm.optimizer.clip_grad == 0.25
    (problem,) = refused("algorithm.optimizer.clip_grad=0.5", "trainer.grad_clip=0.25")
    assert "clip_grad=0.5 and trainer.grad_clip=0.25 are one thing: keep trainer.grad_clip" in problem


def test_what_is_given_by_verls_name_alone_counts_by_ours(loaded: Load) -> None:
    actor = "{grad_clip: 2, strategy: fsdp, use_dynamic_bsz: false, optim: {lr: 3e-5, warmup_style: cosine}}"
    model = "{enable_gradient_checkpointing: true, use_remove_padding: false}"
    found = loaded(
        f"trainer.trainer_config={{actor_rollout_ref: {{actor: {actor}, model: {model}}}}}", "buffer.total_steps=9"
    )
    trainer, optimizer = found.config.trainer, found.config.algorithm.optimizer
    assert (trainer.grad_clip, trainer.trainer_strategy, trainer.use_dynamic_bsz) == (2.0, "fsdp", False)
    assert (optimizer.lr, optimizer.lr_scheduler_type, optimizer.clip_grad) == (3e-5, "cosine", 2.0)
    assert (trainer.enable_gradient_checkpointing, trainer.use_remove_padding) == (True, False)
    assert found.origins["trainer.grad_clip"] == f"derived: {ACTOR}grad_clip"


def test_a_precision_may_be_spelled_as_in_torch(loaded: Load) -> None:
    given = "{mixed_precision: {param_dtype: float32, reduce_dtype: bfloat16}}"
    config = loaded(f"{ACTOR}fsdp_config={given}").config
    assert config.trainer.param_dtype == "fp32"
    engine = below(config, "actor_rollout_ref.actor.fsdp_config")
    assert engine["mixed_precision"] == {"param_dtype": "fp32", "reduce_dtype": "bf16"}


def test_a_size_of_all_ranks_is_shared_out_or_refused(loaded: Load, refused: Refuse) -> None:
    ranks = "cluster.trainer_ranks=2"
    (notice,) = notices(loaded(ranks, "trainer.use_dynamic_bsz=false", f"{ACTOR}ppo_micro_batch_size=8").config)
    assert notice == f"{ACTOR}ppo_micro_batch_size is of all 2 ranks together: ppo_micro_batch_size_per_gpu is 4"
    (problem,) = refused(ranks, f"{ACTOR}ppo_micro_batch_size=7")
    assert "=7 is shared by all 2 ranks, and cannot be: set ppo_micro_batch_size_per_gpu" in problem


def test_a_number_of_sequences_is_not_read_where_tokens_make_a_micro_batch(loaded: Load) -> None:
    (notice,) = notices(loaded(f"{ACTOR}ppo_micro_batch_size_per_gpu=8").config)
    assert notice.endswith("=8 has no effect: trainer.use_dynamic_bsz=true makes micro-batches by their tokens")


@pytest.mark.parametrize(
    "key", ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "actor_rollout_ref.actor.data_loader_seed"]
)
def test_what_changes_nothing_is_noticed(loaded: Load, key: str) -> None:
    config = loaded(f"{GIVEN}{key}=16").config
    (notice,) = notices(config)
    assert notice.startswith(f"{GIVEN}{key}=16 has no effect: ")
    assert unavailable(config) == []


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("[model]", "lacks optimizer, extra, without which a run cannot go on exactly: leave it out"),
        ("[model, optimizer, extra, hf_model]", "for a model in Hugging Face layout set trainer.save_hf_checkpoint"),
    ],
)
def test_a_checkpoint_that_could_not_be_resumed_is_refused(refused: Refuse, contents: str, message: str) -> None:
    (problem,) = refused(f"{ACTOR}checkpoint.save_contents={contents}")
    assert message in problem


def test_attention_that_needs_a_gpu_is_refused_on_the_cpu(refused: Refuse) -> None:
    key = f"{GIVEN}actor_rollout_ref.model.override_config.attn_implementation"
    (problem,) = refused(f"{key}=flash_attention_2")
    assert "=flash_attention_2 needs a GPU: use sdpa or eager, or leave it out" in problem


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.critic_warmup=-1", PPO], "trainer.critic_warmup=-1 is too small: use 0 or more"),
        (
            ["trainer.critic_warmup=2"],
            "trainer.critic_warmup=2 trains a critic alone, and algorithm_type=grpo has none: use 0, or "
            "algorithm_type=ppo",
        ),
        (
            ["algorithm.optimizer.min_lr_ratio=2"],
            "algorithm.optimizer.min_lr_ratio=2 is no share: use a number from 0 to 1",
        ),
        (
            ["algorithm.optimizer.lr_scheduler_type=linear"],
            "algorithm.optimizer.lr_scheduler_type=linear is not known: use constant or cosine",
        ),
        (
            ["algorithm.optimizer.lr_scheduler_type=constant", "algorithm.optimizer.warmup_style=cosine"],
            "algorithm.optimizer.warmup_style=cosine is an older name of lr_scheduler_type, which is constant: keep "
            "the second",
        ),
        (
            ["algorithm.optimizer.lr_warmup_steps=9", "buffer.total_steps=9"],
            "algorithm.optimizer.lr_warmup_steps=9 leaves nothing of 9 steps: use fewer",
        ),
        (
            ["mode=train", "bus.url=nats://h:1", "algorithm.optimizer.lr_scheduler_type=cosine"],
            "algorithm.optimizer.lr_scheduler_type=cosine needs the number of steps: set buffer.total_steps, or "
            "algorithm.optimizer.total_training_steps",
        ),
    ],
)
def test_a_schedule_that_is_none_is_refused(refused: Refuse, overrides: list[str], message: str) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["trainer.ulysses_sequence_parallel_size=2", "trainer.use_remove_padding=false", "cluster.gpu_per_node=5"],
            "trainer.ulysses_sequence_parallel_size=2 needs packed sequences: set trainer.use_remove_padding=true",
        ),
        (
            ["trainer.offload_policy=true", "trainer.trainer_strategy=fsdp"],
            "trainer.offload_policy=true is of fsdp2 alone, and trainer.trainer_strategy=fsdp: use param_offload",
        ),
    ],
)
def test_what_the_engine_cannot_do_at_once_is_refused(refused: Refuse, overrides: list[str], message: str) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (
            "fsdp_config.use_orig_params=true",
            "no run could go on from its checkpoints by trainer.trainer_strategy=fsdp",
        ),
        ("fsdp_config.fsdp_size=1", "each of the 4 ranks would train a model of its own: use -1, or fsdp2"),
    ],
)
def test_what_fsdp_1_cannot_follow_is_refused(loaded: Load, refused: Refuse, key: str, reason: str) -> None:
    ranks = "cluster.trainer_ranks=4"
    (problem,) = refused(f"{ACTOR}{key}", "trainer.trainer_strategy=fsdp", ranks)
    assert problem.startswith(f"{ACTOR}{key}: ")
    assert reason in problem
    loaded(f"{ACTOR}{key}", "trainer.trainer_strategy=fsdp2", ranks)
    loaded(f"{ACTOR}fsdp_config.fsdp_size=2", "trainer.trainer_strategy=fsdp", ranks)


def test_ranks_without_an_experience_are_noticed(loaded: Load) -> None:
    (notice,) = notices(loaded("cluster.trainer_ranks=40").config)
    assert notice == ("buffer.train_batch_size=32 is less than the 40 ranks of the trainer: some compute for nothing")


def test_entropy_of_padded_sequences_is_not_taken_in_chunks(loaded: Load) -> None:
    chunks, attention = "trainer.entropy_from_logits_with_chunking=true", "model.override_config.attn_implementation"
    (notice,) = notices(loaded(chunks).config)
    assert "entropy_from_logits_with_chunking=true has no effect" in notice
    assert notices(loaded(chunks, f"{GIVEN}actor_rollout_ref.{attention}=sdpa").config) == []


def test_fsdp_1_is_for_gpus(loaded: Load) -> None:
    (missing,) = unavailable(loaded("trainer.trainer_strategy=fsdp").config)
    assert missing.startswith("not available yet: trainer.trainer_strategy=fsdp on the CPU (set fsdp2 instead")
    assert unavailable(loaded("trainer.trainer_strategy=fsdp", "cluster.gpu_per_node=2").config) == []


def test_a_loss_scale_that_is_always_right_is_noticed(loaded: Load) -> None:
    (notice,) = notices(loaded("trainer.fix_actor_microbatch_loss_scale=true").config)
    assert notice.endswith("has no effect: the loss is always normalised over the whole batch")
