"""From our configuration to veRL's overrides, and that what came from veRL goes back as it was."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.keys import joined, leaves, split
from services.config.load import load
from services.config.verl.tree import moved_key
from services.convert.back import Mine, of_tree, taken_back
from services.convert.conversion import converted
from services.convert.overrides import value_of
from services.convert.row import NOTHING, PPO, Way
from services.convert.said import Said, Saying
from services.convert.sources import from_arguments
from services.convert.spelled import quoted
from services.convert.table import TABLE, row_of
from services.convert.table.algorithm import ADVANTAGES, AGGREGATIONS
from services.convert.writing import grown

EXAMPLES = Path(__file__).parents[3] / "configs" / "examples"
ACTOR, ROLLOUT, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"

SHARE = st.floats(0.01, 1.0).map(lambda value: round(value, 4))
COUNT = st.integers(1, 64)
FLAG = st.booleans()
NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True)
FILE = NAME.map(lambda name: f"data/{name}/train.parquet") | NAME.map(lambda name: f"data/{name}-x.parquet")

STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "algorithm.adv_estimator": st.sampled_from(list(ADVANTAGES)),
    "algorithm.kl_ctrl.kl_coef": SHARE,
    "algorithm.use_kl_in_reward": FLAG,
    f"{ACTOR}.clip_ratio": SHARE,
    f"{ACTOR}.clip_ratio_c": st.floats(1.5, 9.0).map(lambda value: round(value, 2)),
    f"{ACTOR}.clip_ratio_high": SHARE,
    f"{ACTOR}.clip_ratio_low": SHARE,
    f"{ACTOR}.entropy_coeff": SHARE,
    f"{ACTOR}.optim.clip_grad": SHARE,
    f"{ACTOR}.kl_loss_coef": SHARE,
    f"{ACTOR}.loss_agg_mode": st.sampled_from(AGGREGATIONS),
    f"{ACTOR}.optim.betas": st.lists(SHARE, min_size=2, max_size=2),
    f"{ACTOR}.optim.lr": SHARE,
    f"{ACTOR}.optim.optimizer": st.sampled_from(["AdamW", "SGD", "Adagrad"]),
    f"{ACTOR}.optim.lr_warmup_steps": COUNT,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": SHARE,
    f"{ACTOR}.optim.num_cycles": SHARE,
    f"{ACTOR}.optim.weight_decay": SHARE,
    f"{ACTOR}.policy_loss.loss_mode": st.just("vanilla"),
    f"{ACTOR}.ppo_max_token_len_per_gpu": COUNT,
    f"{ACTOR}.strategy": st.sampled_from(["fsdp", "fsdp2"]),
    f"{ACTOR}.ulysses_sequence_parallel_size": COUNT,
    f"{ACTOR}.use_dynamic_bsz": FLAG,
    f"{ACTOR}.use_kl_loss": FLAG,
    "actor_rollout_ref.model.custom_chat_template": NAME,
    "actor_rollout_ref.model.lora_adapter_path": NAME,
    "actor_rollout_ref.model.path": NAME,
    "actor_rollout_ref.model.trust_remote_code": FLAG,
    f"{ROLLOUT}.data_parallel_size": st.just(1),
    f"{ROLLOUT}.dtype": st.sampled_from(["bfloat16", "float16"]),
    f"{ROLLOUT}.enable_chunked_prefill": FLAG,
    f"{ROLLOUT}.enable_prefix_caching": FLAG,
    f"{ROLLOUT}.enforce_eager": FLAG,
    f"{ROLLOUT}.gpu_memory_utilization": SHARE,
    f"{ROLLOUT}.ignore_eos": FLAG,
    f"{ROLLOUT}.max_model_len": COUNT,
    f"{ROLLOUT}.max_num_batched_tokens": COUNT,
    f"{ROLLOUT}.max_num_seqs": COUNT,
    f"{ROLLOUT}.multi_turn.format": st.just("hermes"),
    f"{ROLLOUT}.n": COUNT,
    f"{ROLLOUT}.name": st.just("vllm"),
    f"{ROLLOUT}.pipeline_model_parallel_size": st.just(1),
    f"{ROLLOUT}.quantization": st.just("fp8"),
    f"{ROLLOUT}.seed": COUNT,
    f"{ROLLOUT}.temperature": SHARE,
    f"{ROLLOUT}.tensor_model_parallel_size": st.sampled_from([1, 2]),
    f"{ROLLOUT}.top_k": COUNT,
    f"{ROLLOUT}.top_p": SHARE,
    f"{ROLLOUT}.val_kwargs.n": COUNT,
    f"{ROLLOUT}.val_kwargs.temperature": SHARE,
    f"{ROLLOUT}.val_kwargs.top_k": COUNT,
    f"{ROLLOUT}.val_kwargs.top_p": SHARE,
    "critic.model.path": NAME,
    "data.apply_chat_template_kwargs.enable_thinking": FLAG,
    "data.filter_overlong_prompts": st.just(True),
    "data.max_prompt_length": COUNT,
    "data.max_response_length": COUNT,
    "data.prompt_key": NAME,
    "data.seed": COUNT,
    "data.shuffle": FLAG,
    "data.tokenizer": NAME,
    "data.train_files": FILE | st.lists(FILE, min_size=2, max_size=3, unique=True),
    "data.val_files": FILE,
    "trainer.balance_batch": FLAG,
    "trainer.critic_warmup": COUNT,
    "trainer.default_local_dir": NAME.map(lambda name: f"/runs/{name}"),
    "trainer.experiment_name": NAME,
    "trainer.logger": st.sampled_from(["wandb", "tensorboard", "mlflow"]).map(lambda name: ["console", name]),
    "trainer.n_gpus_per_node": st.just(8),
    "trainer.nnodes": COUNT,
    "trainer.project_name": NAME,
    "trainer.resume_mode": st.sampled_from(["auto", "disable"]),
    "trainer.save_freq": st.just(-1) | COUNT,
    "trainer.test_freq": st.just(-1) | COUNT,
    "trainer.total_epochs": COUNT,
    "trainer.total_training_steps": COUNT,
    "trainer.val_before_train": FLAG,
    "trainer.val_only": st.just(True),
    "critic.optim.lr": SHARE,
    f"{ACTOR}.fsdp_config.param_offload": FLAG,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": COUNT,
    "actor_rollout_ref.ref.fsdp_config.forward_prefetch": FLAG,
}
"""Keys whose value goes there and back by itself."""

TOGETHER = {
    "data.train_batch_size": "with ppo_mini_batch_size",
    f"{ACTOR}.ppo_mini_batch_size": "with train_batch_size",
    f"{ACTOR}.kl_loss_type": "with use_kl_loss",
    "algorithm.kl_penalty": "with use_kl_in_reward",
    "algorithm.kl_ctrl.type": "with a target",
    "algorithm.kl_ctrl.target_kl": "with an adaptive coefficient",
    "algorithm.kl_ctrl.horizon": "with an adaptive coefficient",
    "algorithm.gamma": "with gae",
    "algorithm.lam": "with gae",
    "algorithm.norm_adv_by_std_in_grpo": "with grpo",
    "algorithm.filter_groups.enable": "with grpo",
    "algorithm.filter_groups.max_num_gen_batches": "with filter_groups.enable",
    "actor_rollout_ref.model.lora_alpha": "with lora_rank",
    "actor_rollout_ref.model.target_modules": "with lora_rank",
    "actor_rollout_ref.model.exclude_modules": "with lora_rank",
    "reward_model.model.trust_remote_code": "with a reward model",
    "data.truncation": "with filter_overlong_prompts",
    "data.image_key": "of what is not available",
    "data.video_key": "of what is not available",
    "data.train_max_samples": "with train_files",
    "data.val_max_samples": "with val_files",
    "data.trust_remote_code": "with that of the model",
}
"""Keys that need others beside them: tested together, below."""


def back(sayings: dict[str, Any]) -> dict[str, Any]:
    """What veRL's keys are after they were ours."""
    said = Said(PPO, {key: Saying(key, value, f"{key}={value}") for key, value in sayings.items()})
    tree: dict[str, Any] = {}
    for key, value in converted(said).values.items():
        grown(tree, split(key), value)
    return dict(of_tree(tree, PPO).overrides)


def test_the_strategies_cover_every_key_that_goes_both_ways() -> None:
    one_way = Way.__dataclass_fields__["backward"].default
    both = {row.verl for row in TABLE if PPO in row.kinds and row.is_one_key and row.way}
    goes_back = {key for key in both if (row := row_of(key, PPO)) and row.way and row.way.backward is not one_way}
    assert len(goes_back) > 80
    assert sorted(goes_back - set(STRATEGIES) - set(TOGETHER)) == []


@settings(deadline=None, max_examples=40)
@given(st.fixed_dictionaries({}, optional=STRATEGIES))  # type: ignore[arg-type]
def test_what_came_from_verl_goes_back_as_it_was(sayings: dict[str, Any]) -> None:
    sayings.setdefault("data.train_files", "data/gsm8k/train.parquet")
    sayings.setdefault("data.val_files", "data/gsm8k/test.parquet")
    found = back(sayings)
    assert {key: found.get(key) for key in sayings} == sayings


@settings(deadline=None, max_examples=20)
@given(mini=COUNT, times=COUNT, answers=COUNT, estimator=st.sampled_from(["k1", "k2", "k3", "low_var_kl", "abs"]))
def test_keys_that_belong_together_go_back_together(mini: int, times: int, answers: int, estimator: str) -> None:
    sayings = {
        "data.train_batch_size": mini * times,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ROLLOUT}.n": answers,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": estimator,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": estimator,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.kl_ctrl.target_kl": 0.1,
        "algorithm.kl_ctrl.horizon": 500,
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.max_num_gen_batches": 4,
        "actor_rollout_ref.model.lora_rank": 8,
        "actor_rollout_ref.model.lora_alpha": 16,
        "actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"],
        "actor_rollout_ref.model.exclude_modules": "lm_head",
        "data.train_files": "a/train.parquet",
        "data.train_max_samples": 32,
        "reward_model.enable": True,
        "reward_model.model.path": "rm",
        "reward_model.model.trust_remote_code": True,
        "reward_model.rollout.tensor_model_parallel_size": 2,
    }
    found = back(sayings)
    expected = dict(sayings)
    expected.pop("reward_model.rollout.tensor_model_parallel_size")
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", ["ppo_example.yaml", "grpo_example.yaml"])
def test_the_guides_configurations_become_launches_that_convert_to_them_again(name: str) -> None:
    found = taken_back(load(EXAMPLES / name))
    words = shlex.split(found.command().replace("\\\n", " "), comments=False)
    words = [word.replace("${HOME}", "${oc.env:HOME}") for word in words]
    again = converted(from_arguments(words, {}).said, said_only=True).values
    tree: dict[str, Any] = {}
    for key, value in again.items():
        grown(tree, split(key), value)
    given_ = load(EXAMPLES / name).given.model_dump(exclude_unset=True)
    mine = Mine(tree)
    for key in ("algorithm", "buffer", "cluster", "monitor", "project", "name", "synchronizer"):
        assert mine.value(key) is not NOTHING
    assert tree["buffer"]["batch_size"] == given_["buffer"]["batch_size"]
    assert tree["buffer"]["train_batch_size"] == given_["buffer"]["train_batch_size"]
    assert tree["synchronizer"] == given_["synchronizer"]
    assert tree["cluster"] == given_["cluster"]
    assert tree["algorithm"]["repeat_times"] == given_["algorithm"]["repeat_times"]
    assert tree["algorithm"]["kl_loss_fn"] == given_["algorithm"]["kl_loss_fn"]
    assert where_verl_reads(tree) == where_verl_reads(given_)


def where_verl_reads(tree: dict[str, Any]) -> dict[str, Any]:
    return {moved_key(joined(path)): value for path, value in leaves(tree["trainer"]["trainer_config"])}


def test_what_verl_has_no_counterpart_for_is_listed() -> None:
    left = dict(taken_back(load(EXAMPLES / "frozen_lake.yaml")).left)
    reasons = {key.partition("=")[0]: reason for key, reason in left.items()}
    workflows = [key for key in reasons if "workflow" in key]
    assert len(workflows) > 0
    assert {reasons[key] for key in workflows} == {"workflows are agent loops in veRL, written for it"}


@pytest.mark.parametrize(
    "value", [1e-6, 0.5, True, None, 3, "a b", "x", ["console", "wandb"], {"a": 1, "b": [2]}, "it's"]
)
def test_a_value_survives_the_shell_and_hydra(value: Any) -> None:
    (word,) = shlex.split(quoted(value))
    assert value_of(word) == value
    assert type(value_of(word)) is type(value)


def test_a_variable_stays_one_in_the_shell() -> None:
    assert quoted("${oc.env:HOME}/a b") == '"${HOME}/a b"'
    assert quoted("${oc.env:NODES,2}") == '"${NODES:-2}"'
