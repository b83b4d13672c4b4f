"""What contradicts itself is refused before anything starts, with what to change."""

from collections.abc import Callable

import pytest

from services.config.load import Loaded

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

GPUS = ("cluster.node_num=1", "cluster.gpu_per_node=4")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["buffer.train_batch_size=500"],
            "buffer.train_batch_size=500 is not a multiple of repeat_times=8: use 496 or 504",
        ),
        (["buffer.train_batch_size=5"], "buffer.train_batch_size=5 is not a multiple of repeat_times=8: use 8"),
        (["buffer.batch_size=0"], "buffer.batch_size=0 is too small: use 1 or more"),
        (["buffer.total_epochs=0"], "buffer.total_epochs=0 is too small: use 1 or more"),
        (["synchronizer.sync_interval=0"], "synchronizer.sync_interval=0 is too small: use 1 or more"),
        (["synchronizer.sync_offset=-1"], "synchronizer.sync_offset=-1 is too small: use 0 or more"),
        (["trainer.save_interval=-1"], "trainer.save_interval=-1 is too small: use 0 or more"),
        (["algorithm.optimizer.lr=-1e-3"], "algorithm.optimizer.lr=-0.001 is too small: use a number above 0"),
        (
            ["synchronizer.keep_versions=0"],
            "synchronizer.keep_versions=0 keeps nothing: use 1 or more, or -1 for all",
        ),
        (
            ["algorithm.repeat_times=1"],
            "algorithm.repeat_times=1 leaves grpo nothing to compare: its advantage of an answer is relative to the "
            "other answers to the same task: use 2 or more (8 is usual)",
        ),
        (
            ["algorithm.algorithm_type=gprpo"],
            "algorithm.algorithm_type=gprpo is not an algorithm: did you mean grpo?",
        ),
        (
            ["model.max_prompt_tokens=60", "model.max_response_tokens=6", "model.max_model_len=64"],
            "model.max_prompt_tokens=60 + max_response_tokens=6 = 66 do not fit in max_model_len=64: "
            "use a max_model_len of 66 or more",
        ),
        (
            ["model.max_response_tokens=70", "model.max_model_len=64"],
            "model: max_model_len=64 and max_response_tokens=70 leave -6 tokens for a prompt: "
            "use a max_model_len above 70",
        ),
        (
            ["model.temperature=-0.5"],
            "model.temperature=-0.5 is negative: use 0 (always the likeliest token) or more",
        ),
        (
            ["buffer.explorer_input.taskset.rollout_args.top_p=1.5"],
            "buffer.explorer_input.taskset.rollout_args.top_p=1.5 is no share: use a number above 0, at most 1",
        ),
        (
            ["buffer.explorer_input.taskset.rollout_args.max_tokens=99", "model.max_model_len=64"],
            "buffer.explorer_input.taskset.rollout_args.max_tokens=99 does not fit: use 1 to 63 (max_model_len=64)",
        ),
        (
            ["synchronizer.sync_interval=4", "synchronizer.sync_offset=1", "synchronizer.max_staleness=3"],
            "synchronizer.max_staleness=3 cannot be met with sync_interval=4 and sync_offset=1: "
            "use 4 or more, or sync more often",
        ),
        (
            ["explorer.over_rollout.ratio=0.2"],
            "explorer.over_rollout.ratio=0.2 and synchronizer.sync_style=fixed contradict each other: "
            "use sync_style=dynamic_by_explorer, or ratio=0",
        ),
        (
            ["synchronizer.heartbeat_interval=10"],
            "synchronizer.member_timeout=10.0 is not above heartbeat_interval=10.0: use 50 or so, "
            "or every member seems lost",
        ),
        (
            ["bus.spill_bytes=9000000"],
            "bus.spill_bytes=9000000 is above max_payload_bytes=8388608: use 4194304 or so, "
            "or the bus refuses large groups",
        ),
        (
            ["bus.sync_interval=often"],
            "bus.sync_interval=often is no interval: use always, or a time such as 10s",
        ),
        (["name=a/b"], "name='a/b' cannot name a directory: use letters, digits, - and _ without slashes"),
        (["model.model_path="], "model.model_path=null must be text"),
        (
            ["model.model_path=''"],
            "model.model_path is empty: give a local directory or the name of a Hugging Face model",
        ),
        (
            ["buffer.explorer_input.tasksets=[{name: other, path: o.jsonl}]"],
            "buffer.explorer_input has both taskset and tasksets: move the first into the second",
        ),
        (
            ["buffer.explorer_input.taskset=null"],
            "mode=both explores, but there is no task: set buffer.explorer_input.taskset (or tasksets)",
        ),
        (
            ["mode=bench"],
            "mode=bench evaluates, but there is nothing to evaluate on: set buffer.explorer_input.eval_tasksets",
        ),
        (
            ["buffer.explorer_input.eval_tasksets=[{name: e, path: a}, {name: e, path: b}]"],
            "buffer.explorer_input.eval_tasksets holds 2 tasksets named e: give each its own name",
        ),
        (
            ["buffer.explorer_input.taskset.path=null"],
            "buffer.explorer_input.taskset.path is missing (taskset sums): give a file or a data set",
        ),
        (
            [*GPUS, "explorer.rollout_model.engine_num=2", "explorer.rollout_model.tensor_parallel_size=2"],
            "the explorer's engines take 4 GPUs (engine_num * tensor_parallel_size, auxiliary_models included) but "
            "the cluster has 4 and the trainer needs at least one: reduce explorer.rollout_model.engine_num or add "
            "nodes",
        ),
        (
            ["explorer.rollout_model.dtype=bflaot16"],
            "explorer.rollout_model.dtype=bflaot16 is not a dtype of an engine: did you mean bfloat16?",
        ),
        (
            ["explorer.rollout_model.dtype=float32", "trainer.weights_dtype=bf16"],
            "trainer.weights_dtype=bf16 is coarser than explorer.rollout_model.dtype=float32, which would sample "
            "from rounded weights: use weights_dtype=fp32, or dtype=bfloat16",
        ),
        (
            ["trainer.trainer_config={trainer: {critic_warmup: 0}}", "trainer.trainer_config_path=train.yaml"],
            "trainer.trainer_config and trainer.trainer_config_path exclude each other: keep one of them",
        ),
    ],
)
def test_a_contradiction_is_refused_with_what_to_change(refused: Refuse, overrides: list[str], message: str) -> None:
    problems = [problem.partition("  (")[0] for problem in refused(*overrides)]
    assert problems == [message]


def test_contradictions_are_told_together_each_with_its_place(refused: Refuse) -> None:
    problems = refused("trainer.save_interval=-1", extra="synchronizer:\n  sync_interval: 0\n  sync_offset: -2\n")
    assert problems == [
        "synchronizer.sync_interval=0 is too small: use 1 or more  (c.yaml:15)",
        "synchronizer.sync_offset=-2 is too small: use 0 or more  (c.yaml:16)",
        "trainer.save_interval=-1 is too small: use 0 or more  (override)",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ["mode=train", "buffer.explorer_input.taskset=null"],
        ["algorithm.algorithm_type=ppo", "algorithm.repeat_times=1"],
        ["mode=explore", *GPUS, "explorer.rollout_model.engine_num=4"],
        [*GPUS, "explorer.rollout_model.engine_num=4", "model.tinker.enable=true"],
        ["synchronizer.sync_interval=4", "synchronizer.sync_offset=1", "synchronizer.max_staleness=4"],
        ["synchronizer.sync_style=fully_async", "synchronizer.max_staleness=0"],
        ["synchronizer.sync_style=dynamic_by_explorer", "explorer.over_rollout.ratio=0.2"],
        ["buffer.train_batch_size=16", "buffer.batch_size=4"],
        ["trainer.save_interval=0", "model.temperature=0"],
        ["bus.sync_interval=10s"],
    ],
)
def test_what_makes_sense_is_accepted(loaded: Load, overrides: list[str]) -> None:
    assert loaded(*overrides).config.model.model_path == "some/model"
