"""Whole launches: the alignment guide's two, and scripts as veRL's examples are written."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from services.config.load import load
from services.convert.checking import problems
from services.convert.conversion import Conversion, converted
from services.convert.row import EVALUATION, PPO, SFT
from services.convert.sources import Source, from_file
from services.convert.writing import written

LAUNCHES = Path(__file__).parent / "launches"
EXAMPLES = Path(__file__).parents[3] / "configs" / "examples"
GUIDE = {"ppo_reward_model.sh": "ppo_example.yaml", "grpo_dynamic_batches.sh": "grpo_example.yaml"}

_BASE = "buffer.explorer_input"
DEFAULTS = {
    "ppo_reward_model.sh": {
        f"{_BASE}.tasksets[0].data_selector.selector_type": "shuffle",
        f"{_BASE}.tasksets[1].data_selector.selector_type": "shuffle",
        f"{_BASE}.eval_tasksets[0].rollout_args.temperature": 0,
        f"{_BASE}.eval_tasksets[1].rollout_args.temperature": 0,
        "trainer.trainer_strategy": "fsdp",
        "trainer.use_dynamic_bsz": False,
    },
    "grpo_dynamic_batches.sh": {
        f"{_BASE}.tasksets[0].data_selector.selector_type": "shuffle",
        f"{_BASE}.eval_tasksets[0].rollout_args.temperature": 0,
        "trainer.trainer_strategy": "fsdp",
    },
}
"""What is written beside the guide's own YAML: veRL's defaults, where ours are others."""


def read(name: str, *arguments: str, **environment: str) -> Source:
    return from_file(LAUNCHES / name, arguments, environment)


def conversion(name: str, *arguments: str, said_only: bool = False, **environment: str) -> Conversion:
    return converted(read(name, *arguments, **environment).said, said_only=said_only)


def data(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create(text))


@pytest.mark.parametrize("name", GUIDE)
def test_the_guides_example_becomes_the_guides_configuration(name: str) -> None:
    expected = data((EXAMPLES / GUIDE[name]).read_text(encoding="utf-8"))
    assert data(written(conversion(name, said_only=True))) == expected


@pytest.mark.parametrize("name", GUIDE)
def test_beside_it_stand_verls_defaults_and_nothing_else(name: str) -> None:
    said, whole = conversion(name, said_only=True).values, conversion(name).values
    assert {key: value for key, value in whole.items() if key not in said} == DEFAULTS[name]
    assert {key: whole[key] for key in said} == said
    origins = {origin for key in DEFAULTS[name] for origin in conversion(name).lines[key].origins}
    assert all(origin.startswith("veRL's default of ") for origin in origins)


@pytest.mark.parametrize("name", GUIDE)
def test_the_guides_examples_pass_the_check(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(written(conversion(name)), encoding="utf-8")
    config = load(file).config
    assert config.train_batch_size == {"ppo_example.yaml": 256, "grpo_example.yaml": 2048}[GUIDE[name]]
    assert config.synchronizer.sync_interval == 4


def test_every_line_says_where_it_comes_from() -> None:
    lines = written(conversion("ppo_reward_model.sh")).splitlines()
    values = [line for line in lines if not line.lstrip().startswith("#") and not line.rstrip().endswith(":")]
    assert len(values) > 60
    assert [line for line in values if "  # " not in line] == []
    assert "  repeat_times: 1  # veRL's default of actor_rollout_ref.rollout.n" in lines
    assert "    lr: 1e-6  # actor_rollout_ref.actor.optim.lr" in lines


def test_a_script_of_arrays() -> None:
    found = conversion("arrays.sh")
    values = found.values
    assert values["model.model_path"] == "Qwen/Qwen3-8B"
    assert values["name"] == "Qwen3-8B_sglang"
    assert values["model.max_response_tokens"] == 8192
    assert values["algorithm.algorithm_type"] == "rloo"
    assert values["algorithm.repeat_times"] == 8  # the remark between the lines is none of the command
    assert values["explorer.rollout_model.tensor_parallel_size"] == 2
    assert values["cluster.gpu_per_node"] == 8
    assert values["cluster.node_num"] == "${oc.env:CLUSTER_NODES,1}"
    assert values["monitor.monitor_type"] == "tensorboard"
    assert values["buffer.explorer_input.tasksets[0].path"] == "${oc.env:HOME}/data/gsm8k"
    assert values["buffer.explorer_input.tasksets[1].path"] == "${oc.env:HOME}/data/dapo-math-17k.parquet"
    assert values["buffer.explorer_input.eval_tasksets[0].name"] == "aime-2024_eval"
    assert values["synchronizer.sync_interval"] == 2
    assert any("vLLM samples here" in each for each in found.differences)
    assert problems(written(found)) == ([], [])


def test_the_variables_of_a_script_can_be_given() -> None:
    values = conversion("arrays.sh", "trainer.total_epochs=2", DEVICE="npu", BACKEND="vllm", CLUSTER_NODES="1").values
    assert values["cluster.gpu_per_node"] == 16
    assert values["name"] == "Qwen3-8B_vllm"
    assert values["buffer.total_epochs"] == 2


def test_a_recipe_behind_ray_job_submit() -> None:
    source = read("ray_job.sh")
    found = converted(source.said)
    values = found.values
    assert "recipe.dapo.main_dapo is a program of its own" in source.remarks[0]
    assert values["checkpoint_root_dir"] == "${oc.env:HOME}/verl/ckpts"
    assert values["synchronizer.sync_interval"] == 16
    assert values["buffer.total_steps"] == 200 * 16
    assert values["algorithm.optimizer.lr_warmup_steps"] == 10 * 16
    assert values["algorithm.advantage_fn_args.std_threshold"] == 0.0
    assert values["data_processor.experience_pipeline.refill_batches"] == 10
    assert values["algorithm.loss_agg_mode"] == "token-mean"
    assert values["buffer.explorer_input.default_reward_fn_type"] == "math_dapo_reward"
    assert values["buffer.explorer_input.tasksets[0].reward_fn_args.cache_length"] == 4096
    assert values["buffer.explorer_input.tasksets[0].reward_fn_args.max_response_length"] == 20480
    assert values["buffer.explorer_input.eval_tasksets[0].rollout_args.temperature"] == 1.0
    assert values["buffer.explorer_input.eval_tasksets[0].repeat_times"] == 32
    assert values["trainer.trainer_config.actor_rollout_ref.model.override_config.attention_dropout"] == 0.0
    assert values["cluster.node_num"] == 16
    left = [key for keys in found.left.values() for key in keys]
    assert "data.gen_batch_size=1536" in left
    assert problems(written(found)) == ([], [])


def test_supervised_fine_tuning() -> None:
    source = read("sft.sh", "8", "/tmp/out", "optim.weight_decay=0.1")
    found = converted(source.said)
    assert source.said.kind == SFT
    assert found.values["mode"] == "train"
    assert found.values["algorithm.algorithm_type"] == "sft"
    assert found.values["cluster.gpu_per_node"] == 8
    assert found.values["checkpoint_job_dir"] == "/tmp/out"
    assert found.values["algorithm.optimizer.lr"] == 1e-4
    assert found.values["algorithm.optimizer.weight_decay"] == 0.1
    assert found.values["buffer.trainer_input.experience_buffer.format.prompt_key"] == "question"
    assert problems(written(found)) == ([], [])


def test_arguments_that_a_script_lacks_are_told() -> None:
    source = read("sft.sh")
    assert "$2, an argument of the script, is not given: write it behind --" in source.remarks
    needed = "it needs an argument behind --: the script's $2 is not given"
    assert ("trainer.default_local_dir=$2", needed) in source.said.unread


def test_verls_own_yaml_of_the_guide() -> None:
    source = read("ppo_trainer.yaml", "algorithm.kl_ctrl.kl_coef=0.01")
    found = converted(source.said)
    assert source.said.kind == PPO
    assert found.unknown == []
    assert found.values["algorithm.kl_penalty_fn_args.kl_coef"] == 0.01
    assert found.values["checkpoint_root_dir"] == "checkpoints"
    assert found.values["algorithm.rollout_correction.rollout_is"] == "token"
    assert found.values["algorithm.rollout_correction.rollout_is_threshold"] == 2.0
    assert problems(written(found)) == ([], [])


def test_an_sft_yaml_and_an_evaluation_yaml() -> None:
    sft = converted(read("sft_trainer.yaml").said)
    assert sft.unknown == []
    assert sft.values["algorithm.optimizer.lr_scheduler_type"] == "cosine"
    assert sft.values["trainer.grad_clip"] == 1.0
    assert sft.values["model.max_model_len"] == 2048
    assert problems(written(sft)) == ([], [])
    evaluation = read("evaluation.yaml")
    found = converted(evaluation.said)
    assert evaluation.said.kind == EVALUATION
    assert found.values["mode"] == "bench"
    assert found.values["buffer.explorer_input.eval_tasksets[0].path"] == "/tmp/math_Qwen2-7B-Instruct.parquet"
    assert found.values["plugin_dirs"] == ["rewards"]
    assert problems(written(found))[0] == ["model.model_path is ???: give it a value"]
