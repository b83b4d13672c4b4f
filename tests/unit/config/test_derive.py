"""What is left open follows from other keys."""

from collections.abc import Callable

import pytest

from services.config.algorithms.types import ALGORITHM_TYPES
from services.config.derive import derived, resolved
from services.config.load import Loaded
from services.config.tree import RunConfig

Load = Callable[..., Loaded]


def test_the_train_batch_is_every_answer_to_every_task(loaded: Load) -> None:
    assert loaded("buffer.batch_size=6", "algorithm.repeat_times=5").config.buffer.train_batch_size == 30


def test_the_tasks_follow_from_the_train_batch(loaded: Load) -> None:
    result = loaded("buffer.batch_size=null", "buffer.train_batch_size=512")
    assert result.config.buffer.batch_size == 64
    assert result.origins["buffer.batch_size"] == "derived: train_batch_size 512 / repeat_times 8"


def test_the_algorithm_decides_how_often_a_task_is_answered(loaded: Load) -> None:
    result = loaded("algorithm.repeat_times=null", "algorithm.algorithm_type=dapo")
    assert result.config.algorithm.repeat_times == 16
    assert result.origins["algorithm.repeat_times"] == "derived: default of dapo"


def test_a_part_that_is_named_stays(loaded: Load) -> None:
    algorithm = loaded("algorithm.kl_loss_fn=low_var_kl").config.algorithm
    parts = (algorithm.kl_loss_fn, algorithm.advantage_fn, algorithm.policy_loss_fn, algorithm.kl_penalty_fn)
    assert parts == ("low_var_kl", "grpo", "ppo", "none")


@pytest.mark.parametrize(
    ("prompt", "response", "room", "expected"),
    [
        (100, 50, None, (100, 50, 150)),
        (None, 1024, 2048, (1024, 1024, 2048)),
        (500, None, 2048, (500, 1548, 2048)),
        (None, None, 1000, (500, 500, 1000)),
        (None, 512, None, (2048, 512, 2560)),
        (32, 6, 64, (32, 6, 64)),
    ],
)
def test_lengths_that_are_unset_follow_from_the_others(
    prompt: int | None, response: int | None, room: int | None, expected: tuple[int, int, int]
) -> None:
    model = {"max_prompt_tokens": prompt, "max_response_tokens": response, "max_model_len": room}
    config = RunConfig.model_validate({"model": model})
    assert (config.max_prompt_tokens, config.max_response_tokens, config.max_model_len) == expected
    filled = resolved(config).model
    assert (filled.max_prompt_tokens, filled.max_response_tokens, filled.max_model_len) == expected


def test_sampling_is_decided_by_the_taskset_then_the_engine_then_the_model(loaded: Load) -> None:
    config = loaded(
        "model.temperature=0.9",
        "model.top_p=0.8",
        "model.top_k=5",
        "explorer.rollout_model.top_p=0.7",
        "explorer.rollout_model.max_response_tokens=11",
        "buffer.explorer_input.taskset.rollout_args.top_k=3",
    ).config
    sampling = config.generation(config.tasksets[0])
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.9, 0.7, 3)
    assert (sampling.max_tokens, sampling.n, sampling.seed) == (11, 8, None)


def test_an_evaluation_answers_as_often_as_its_taskset_says(loaded: Load) -> None:
    tasksets = "[{name: a, path: a, repeat_times: 32}, {name: b, path: b, rollout_args: {n: 4}}, {name: c, path: c}]"
    config = loaded(f"buffer.explorer_input.eval_tasksets={tasksets}").config
    assert [config.generation(taskset).n for taskset in config.eval_tasksets] == [32, 4, 1]
    assert [taskset.repeat_times for taskset in config.eval_tasksets] == [32, 4, 1]


def test_tasksets_inherit_what_they_share(loaded: Load) -> None:
    config = loaded(
        "buffer.explorer_input.default_workflow_type=shared",
        "buffer.explorer_input.default_eval_workflow_type=shared_eval",
        "buffer.explorer_input.default_reward_fn_type=points",
        "buffer.explorer_input.eval_tasksets=[{path: e.jsonl}, {path: f.jsonl, default_workflow_type: own}]",
        "buffer.total_epochs=3",
    ).config
    (taskset,) = config.tasksets
    assert (taskset.default_workflow_type, taskset.default_reward_fn_type) == ("shared", "points")
    assert (taskset.total_epochs, taskset.batch_size, taskset.repeat_times) == (3, 4, 8)
    assert [e.default_workflow_type for e in config.eval_tasksets] == ["shared_eval", "own"]
    assert [e.name for e in config.eval_tasksets] == ["eval_taskset", "eval_taskset_1"]
    assert [e.is_eval for e in (taskset, *config.eval_tasksets)] == [False, True, True]


def test_without_any_workflow_a_taskset_is_mathematics(loaded: Load) -> None:
    assert loaded().config.tasksets[0].default_workflow_type == "math_workflow"


def test_the_written_weights_have_the_precision_that_explorers_sample_in(loaded: Load) -> None:
    assert loaded().config.trainer.weights_dtype == "bf16"
    assert loaded("explorer.rollout_model.dtype=float32").config.trainer.weights_dtype == "fp32"


def test_the_trainer_has_the_gpus_that_engines_leave_free(loaded: Load) -> None:
    overrides = (
        "cluster.node_num=2",
        "cluster.gpu_per_node=4",
        "bus.url=nats://host:4222",
        "explorer.rollout_model.engine_num=1",
        "explorer.rollout_model.tensor_parallel_size=2",
        "explorer.auxiliary_models=[{model_path: judge, engine_num: 1}]",
    )
    assert loaded(*overrides).config.trainer_ranks == 5
    assert loaded(*overrides, "mode=train").config.trainer_ranks == 8
    assert loaded("cluster.trainer_ranks=2").config.trainer_ranks == 2
    assert loaded().config.trainer_ranks == 1


def test_the_run_directory_is_absolute(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded().config
    assert config.run_dir.is_absolute()
    assert config.run_dir.parts[-3:] == ("checkpoints", "p", "n")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(loaded("checkpoint_root_dir=~/runs").config.run_dir) == "/home/someone/runs/p/n"


@pytest.mark.parametrize("name", ALGORITHM_TYPES)
def test_deriving_twice_changes_nothing(name: str) -> None:
    once = resolved(RunConfig.model_validate({"algorithm": {"algorithm_type": name}}))
    assert resolved(once) == once
    assert [decision.key for decision in derived(once)] == []
