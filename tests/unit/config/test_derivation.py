"""`trinity check --explain` says what each size, share and rate follows from."""

from collections.abc import Callable

import pytest

from services.config.derivation import explain, explain_gpus
from services.config.load import Loaded

Load = Callable[..., Loaded]

GPUS = (
    "cluster.gpu_per_node=8",
    "explorer.rollout_model.engine_num=2",
    "explorer.auxiliary_models=[{model_path: judge}]",
    "buffer.explorer_input.eval_tasksets=[{path: eval.jsonl}]",
)


def _lines(found: Loaded) -> dict[str, dict[str, str]]:
    """What is said of each thing, section by section."""
    sections: dict[str, dict[str, str]] = {}
    for part in explain(found).split("\n\n"):
        title, *lines = part.strip().splitlines()
        sections[title] = {
            what.strip(): how.strip() for what, _, how in (line.strip().partition("  ") for line in lines)
        }
    return sections


def test_a_step_is_parted_over_ranks_and_into_micro_batches(loaded: Load) -> None:
    sizes = ("cluster.trainer_ranks=3", "model.max_model_len=512", "trainer.max_token_len_per_gpu=1100")
    step = _lines(loaded(*sizes))["optimizer step:"]
    assert step["ranks"] == "3 (cluster.trainer_ranks, or 1)"
    assert step["on each rank"] == (
        "train_batch_size 32 / 3 = 11 experiences, spread by their lengths (trainer.balance_batch); 1 copies without a "
        "loss fill up the last"
    )
    assert step["policy micro-batch"] == (
        "at most 1100 tokens (max_token_len_per_gpu); max_model_len 512 leaves room for 2 of full length, so at most 6 "
        "in a step"
    )


def test_micro_batches_of_a_number_are_told_as_such(loaded: Load) -> None:
    actor = "{ppo_micro_batch_size_per_gpu: 5, ppo_epochs: 2}"
    found = loaded("trainer.use_dynamic_bsz=false", f"trainer.trainer_config.actor_rollout_ref.actor={actor}")
    step = _lines(found)["optimizer step:"]
    assert step["policy micro-batch"] == "at most 5 sequences, so 7 in a step, summed up before the update"
    assert step["policy updates"] == "2 in a step, on all its experiences (ppo_epochs)"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "1e-06, constant"),
        (["algorithm.optimizer.lr_warmup_steps=3"], "1e-06, constant, rising over 3 steps"),
        (["algorithm.optimizer.lr_warmup_steps_ratio=0.1"], "1e-06, constant, rising over 0.1 of all steps"),
        (
            ["algorithm.optimizer.lr_warmup_steps_ratio=0.1", "buffer.total_steps=40"],
            "1e-06, constant, rising over 4 steps",
        ),
        (
            ["algorithm.optimizer.lr_scheduler_type=cosine", "buffer.total_steps=40"],
            "1e-06, then by cosine to 1e-08 at step 40",
        ),
        (
            ["algorithm.optimizer={lr_scheduler_type: cosine, num_cycles: 1.5, min_lr_ratio: 0.1}"],
            "1e-06, then by cosine in 1.5 cycles to 1e-07 at the run's end",
        ),
    ],
)
def test_the_learning_rate_is_told_in_words(loaded: Load, overrides: list[str], words: str) -> None:
    assert _lines(loaded(*overrides))["learning rate:"]["policy"] == words


def test_every_engine_and_rank_is_told_its_gpus(loaded: Load) -> None:
    assert explain_gpus(loaded(*GPUS).config) == [
        "rollout engine 1 of 2  node 0: GPU 0, shared with the evaluator (0.45 of the memory each)",
        "rollout engine 2 of 2  node 0: GPU 1 (0.45 of the memory each)",
        "judge 1 of 1           node 0: GPU 2 (0.3 of the memory each)",
        "trainer, 5 ranks       node 0: GPU 3-7",
        "in all                 1 * 8 = 8 GPUs, 5 of them the trainer's",
    ]


def test_a_trainer_of_several_nodes_is_told_how_to_get_them(loaded: Load) -> None:
    lines = explain_gpus(loaded("cluster.node_num=2", "cluster.gpu_per_node=2", "bus.url=nats://h:1").config)
    assert lines[-3:] == [
        "Ray                    before the run, on node 0: CUDA_VISIBLE_DEVICES=1 ray start --head",
        "Ray                    before the run, on node 1: CUDA_VISIBLE_DEVICES=0,1 ray start "
        "--address=HOST_OF_NODE_0:6379",
        "Ray                    on node 0, where the trainer is started: export RAY_ADDRESS=HOST_OF_NODE_0:6379",
    ]


def test_what_is_handed_to_verl_is_told_with_the_place_where_it_was_written(loaded: Load) -> None:
    given = "{fsdp_config: {forward_prefetch: true}, entropy_checkpointing: true, rollout_n: null}"
    found = _lines(loaded(f"trainer.trainer_config.actor_rollout_ref.actor={given}"))["handed to veRL:"]
    engine = "actor_rollout_ref.actor.fsdp_config"
    assert found == {
        f"{engine}.forward_prefetch": "true",
        f"{engine}.entropy_checkpointing": "true (actor_rollout_ref.actor.entropy_checkpointing)",
    }


def test_a_derived_key_is_told_with_its_reason(loaded: Load) -> None:
    derived = _lines(loaded())["derived keys:"]
    assert derived["buffer.train_batch_size = 32"] == "batch_size 4 * repeat_times 8"
