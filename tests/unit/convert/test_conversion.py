"""Single keys: how they change, what is told of them, and what becomes of those without a counterpart."""

from typing import Any

import pytest

from services.convert.conversion import Conversion, converted
from services.convert.said import said_by

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def found(*arguments: str, kind: str = "ppo") -> Conversion:
    return converted(said_by(kind, arguments), said_only=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["algorithm.adv_estimator=gae"], {"algorithm.algorithm_type": "ppo", "algorithm.advantage_fn": "ppo"}),
        (["algorithm.adv_estimator=reinforce_plus_plus"], {"algorithm.advantage_fn": "reinforceplusplus"}),
        (["algorithm.adv_estimator=grpo_vectorized"], {"algorithm.advantage_fn": "grpo"}),
        (
            [f"{ACTOR}.policy_loss.loss_mode=gspo", "algorithm.adv_estimator=grpo"],
            {
                "algorithm.algorithm_type": "gspo",
                "algorithm.policy_loss_fn_args.clip_range_low": 0.2,
                "algorithm.loss_agg_mode": "token-mean",
            },
        ),
        (
            [f"{ACTOR}.policy_loss.loss_mode=cispo", "algorithm.adv_estimator=grpo", f"{ACTOR}.clip_ratio_high=5"],
            {"algorithm.algorithm_type": "cispo", "algorithm.policy_loss_fn_args.clip_range_high": 5},
        ),
        (["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=mse"], {"algorithm.kl_penalty_fn": "k2"}),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.2"],
            {
                "algorithm.kl_penalty_fn": "k1",
                "algorithm.kl_penalty_fn_args.adaptive": True,
                "algorithm.kl_penalty_fn_args.target_kl": 0.2,
                "algorithm.kl_penalty_fn_args.horizon": 10000,
            },
        ),
        ([f"{ACTOR}.use_kl_loss=True"], {"algorithm.kl_loss_fn": "low_var_kl"}),
        ([f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=k1+"], {"algorithm.kl_loss_fn": "k1"}),
        (
            ["algorithm.gamma=0.9", "algorithm.lam=0.95"],
            {"algorithm.advantage_fn_args.gamma": 0.9, "algorithm.advantage_fn_args.lam": 0.95},
        ),
        (
            ["algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=False"],
            {"algorithm.advantage_fn_args.std_normalize": False},
        ),
        (
            [f"{ACTOR}.optim.lr_scheduler_type=cosine"],
            {"algorithm.optimizer.lr_scheduler_type": "cosine", "algorithm.optimizer.min_lr_ratio": 0.0},
        ),
        (
            ["data.train_batch_size=100", f"{ACTOR}.ppo_mini_batch_size=32", f"{ROLLOUT}.n=4"],
            {"buffer.batch_size": 32, "buffer.train_batch_size": 128, "synchronizer.sync_interval": 4},
        ),
        (["data.train_batch_size=16"], {"buffer.batch_size": 16, "synchronizer.sync_interval": 1}),
        (
            ["data.shuffle=False", "data.seed=7"],
            {
                "buffer.explorer_input.tasksets[0].data_selector.selector_type": "sequential",
                "buffer.explorer_input.tasksets[0].data_selector.seed": 7,
            },
        ),
        (
            ["data.train_files=a/gsm8k/train.parquet", "data.train_max_samples=64"],
            {"buffer.explorer_input.tasksets[0].split": "train[:64]"},
        ),
        (["data.truncation=left"], {"model.enable_prompt_truncation": True}),
        (["data.truncation=error"], {"model.enable_prompt_truncation": False}),
        ([f"{ROLLOUT}.top_k=0", f"{ROLLOUT}.do_sample=False"], {"model.top_k": -1, "model.temperature": 0}),
        (
            ["data.val_files=x.parquet", f"{ROLLOUT}.val_kwargs.do_sample=True"],
            {"buffer.explorer_input.eval_tasksets[0].rollout_args.temperature": 1.0},
        ),
        (
            [f"{ROLLOUT}.max_num_seqs=64", f"{ROLLOUT}.engine_kwargs.vllm.swap_space=8"],
            {
                "explorer.rollout_model.extra_engine_args.max_num_seqs": 64,
                "explorer.rollout_model.extra_engine_args.swap_space": 8,
            },
        ),
        (
            ["actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.target_modules=[q_proj,v_proj]"],
            {"model.lora_configs[0].lora_rank": 32, "model.lora_configs[0].target_modules": "q_proj,v_proj"},
        ),
        (
            ["trainer.save_freq=-1", "trainer.test_freq=-1"],
            {"trainer.save_interval": 0, "explorer.eval_interval": 1_000_000},
        ),
        (["trainer.resume_mode=disable"], {"continue_from_checkpoint": False}),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=~/ckpt/global_step_8"],
            {"trainer.resume_from_path": "${oc.env:HOME}/ckpt/global_step_8"},
        ),
        (
            ["trainer.default_local_dir=~/runs/p/e", "trainer.project_name=p", "trainer.experiment_name=e"],
            {"checkpoint_root_dir": "${oc.env:HOME}/runs"},
        ),
        (["trainer.default_local_dir=/runs/other"], {"checkpoint_job_dir": "/runs/other"}),
        (["trainer.val_only=True"], {"mode": "bench"}),
        ([f"{ACTOR}.checkpoint.save_contents=[model,hf_model]"], {"trainer.save_hf_checkpoint": "always"}),
        (
            ["++actor_rollout_ref.actor.fsdp_config.forward_prefetch=True"],
            {"trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.forward_prefetch": True},
        ),
        (
            ["critic.model.fsdp_config.param_offload=True"],
            {"trainer.trainer_config.critic.model.fsdp_config.param_offload": True},
        ),
        (
            [
                "reward.reward_model.enable=True",
                "reward.reward_model.model_path=rm",
                "reward.reward_model.rollout.tensor_model_parallel_size=2",
            ],
            {
                "explorer.auxiliary_models[0].model_path": "rm",
                "explorer.auxiliary_models[0].tensor_parallel_size": 2,
                "explorer.auxiliary_models[0].engine_num": 1,
            },
        ),
        (
            [
                "algorithm.rollout_correction.rollout_rs=geometric",
                "algorithm.rollout_correction.rollout_rs_threshold=1.01",
            ],
            {
                "algorithm.rollout_correction.rollout_rs": "geometric",
                "algorithm.rollout_correction.rollout_rs_threshold": 1.01,
            },
        ),
    ],
)
def test_keys_and_their_values_change_into_ours(arguments: list[str], expected: dict[str, Any]) -> None:
    values = found(*arguments).values
    assert {key: values.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("gpus", "size", "engines", "fitting"),
    [(8, 1, 2, 1), (8, 2, 1, 2), (8, 4, 1, 4), (8, 8, 1, 4), (64, 4, 4, 4), (2, 2, 1, 1)],
)
def test_a_quarter_of_the_gpus_samples(gpus: int, size: int, engines: int, fitting: int) -> None:
    values = found(f"trainer.n_gpus_per_node={gpus}", f"{ROLLOUT}.tensor_model_parallel_size={size}").values
    assert values["explorer.rollout_model.engine_num"] == engines
    assert values["explorer.rollout_model.tensor_parallel_size"] == fitting


def test_keys_without_a_counterpart_are_listed_with_the_reason() -> None:
    left = found(f"{ACTOR}.megatron.tensor_model_parallel_size=4", f"{ROLLOUT}.mode=async", "trainer.device=npu").left
    told = {key: reason for reason, keys in left.items() for key in keys}
    assert "Megatron" in told[f"{ACTOR}.megatron.tensor_model_parallel_size=4"]
    assert "workflow" in told[f"{ROLLOUT}.mode=async"]
    assert set(told) == {
        f"{ACTOR}.megatron.tensor_model_parallel_size=4",
        f"{ROLLOUT}.mode=async",
        "trainer.device=npu",
    }


def test_a_value_without_a_counterpart_is_listed_too() -> None:
    conversion = found(f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.optim.lr_scheduler_type=wsd")
    told = [key for keys in conversion.left.values() for key in keys]
    assert told == [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.optim.lr_scheduler_type=wsd"]
    assert "algorithm.policy_loss_fn" not in conversion.values


def test_an_estimator_without_a_twin_has_the_nearest_and_it_is_told() -> None:
    conversion = found("algorithm.adv_estimator=reinforce_plus_plus_baseline")
    assert conversion.values["algorithm.advantage_fn"] == "grpo"
    assert conversion.values["algorithm.advantage_fn_args.std_cal_level"] == "batch"
    assert "nearest" in conversion.differences[0]


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("data.train_batchsize=4", "data.train_batch_size"),
        ("actor_rollout_ref.actor.ppo_minibatch_size=4", f"{ACTOR}.ppo_mini_batch_size"),
        ("trainer.total_epoch=4", "trainer.total_epochs"),
        ("actor_rollout_ref.actor.fsdp_config.param_ofload=True", f"{ACTOR}.fsdp_config.param_offload"),
    ],
)
def test_a_key_that_verl_does_not_know_is_told_with_the_nearest(argument: str, meant: str) -> None:
    (told,) = found(argument).unknown
    assert told.endswith(f"did you mean {meant}?")


def test_what_cannot_be_read_is_listed() -> None:
    conversion = found("data.train_files=[a,b", "trainer.nnodes=\0", "verbose")
    told = {key: reason for reason, keys in conversion.left.items() for key in keys}
    assert "never closed" in told["data.train_files=[a,b"]
    assert told["trainer.nnodes=$(...)"] == "its value is known only when the script runs"
    assert told["verbose"] == "it is no key=value"


def test_what_changes_nothing_is_not_dropped_in_silence() -> None:
    assert found("actor_rollout_ref.model.lora_alpha=32").idle == ["actor_rollout_ref.model.lora_alpha=32"]


def test_iterations_and_updates_are_told_apart() -> None:
    conversion = found("data.train_batch_size=512", f"{ACTOR}.ppo_mini_batch_size=128", "trainer.save_freq=20")
    assert (
        "trainer.save_freq=20: every 20 updates of the policy; veRL counts iterations of 4 updates: 80 is as rarely"
        in (conversion.differences)
    )


def test_a_removed_key_is_not_said() -> None:
    assert "model.top_p" not in found(f"{ROLLOUT}.top_p=0.7", f"~{ROLLOUT}.top_p").values


def test_a_later_key_goes_before_an_earlier_one() -> None:
    assert found("data.max_prompt_length=1", "data.max_prompt_length=2").values["model.max_prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (f"{ACTOR}.ppo_mini_batch_size=foo", "it is no whole number: veRL's default, 256, stands in its place"),
        ("data.train_batch_size=1000.5", "it is no whole number: veRL's default, 1024, stands in its place"),
        (f"{ACTOR}.entropy_coeff=small", "it is no number: veRL's default, 0.0, stands in its place"),
        (
            "algorithm.use_kl_in_reward=Maybe",
            "it is neither true nor false: veRL's default, false, stands in its place",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_and_verls_default_stands_in_its_place(argument: str, told: str) -> None:
    conversion, silent = found(argument), found()
    assert conversion.left == {told: [argument]}
    assert conversion.values == silent.values


def test_numbers_may_be_written_in_other_ways() -> None:
    sizes = ("data.train_batch_size=1e3", f"{ACTOR}.ppo_mini_batch_size=250.0")
    values = found(*sizes, f"{ROLLOUT}.n=${{oc.env:N}}").values
    assert values["synchronizer.sync_interval"] == 4
    assert values["buffer.batch_size"] == 250
    assert isinstance(values["buffer.batch_size"], int)
    assert values["algorithm.repeat_times"] == "${oc.env:N,1}"
    assert found("algorithm.use_kl_in_reward=1").values["algorithm.kl_penalty_fn"] == "k1"
    saved = found("trainer.save_freq=after_each_epoch", kind="sft").differences
    assert any(each.startswith("trainer.save_freq=after_each_epoch: counts steps") for each in saved)


def test_loggers_that_are_left_out_are_told() -> None:
    conversion = found("trainer.logger=[console,wandb,tensorboard,clearml]")
    assert conversion.values["monitor.monitor_type"] == "wandb"
    (told,) = [each for each in conversion.differences if each.startswith("trainer.logger")]
    assert told.endswith("without tensorboard, clearml")
    assert [each for each in found("trainer.logger=[console,mlflow]").differences if "logger" in each] == []


def test_an_estimator_that_nobody_knows_is_told_with_the_nearest() -> None:
    conversion = found("algorithm.adv_estimator=rlooo")
    told = "algorithm.adv_estimator=rlooo: no estimator of veRL's; did you mean rloo? grpo stands in its place"
    assert conversion.differences[0] == told


def test_a_text_within_a_column_is_told_with_what_to_write() -> None:
    arguments = ("data.prompt_key=extra_info", "+data.prompt_dict_keys=['question']")
    told = "write extra_info.question as a column of texts, and name it in format.prompt_key"
    assert found(*arguments, kind="sft").left == {
        f"rows are read by whole columns: {told}": ["+data.prompt_dict_keys=['question']"]
    }
