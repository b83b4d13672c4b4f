"""Training on rows of data: what follows from it, and which combinations are refused with the reason."""

from collections.abc import Callable

import pytest

from services.config.algorithms.parts import POLICY_LOSSES
from services.config.load import Loaded
from services.config.rows import Mixing
from services.synchronizer.plan import pace_of

Load = Callable[..., Loaded]
Refused = Callable[..., list[str]]

OFFLINE = """\
mode: train
project: p
name: n
algorithm:
  algorithm_type: sft
model:
  model_path: some/model
buffer:
  train_batch_size: 8
  trainer_input:
    experience_buffer:
      storage_type: file
      path: rows.jsonl
"""
MIXED = """\
project: p
name: n
algorithm:
  algorithm_type: mix
  sample_strategy_args:
    expert_data_ratio: 0.2
model:
  model_path: some/model
buffer:
  batch_size: 32
  explorer_input:
    taskset:
      name: sums
      path: sums.jsonl
  trainer_input:
    auxiliary_buffers:
      sft_dataset:
        storage_type: file
        path: experts.jsonl
"""
BUFFER = "buffer.trainer_input.experience_buffer"


def test_a_run_on_rows_is_whole_and_gives_its_weights_with_its_checkpoints(loaded: Load) -> None:
    found = loaded("trainer.save_interval=20", text=OFFLINE)
    assert (found.config.experience_source, found.config.is_whole) == ("rows", True)
    assert (found.config.repeat_times, found.config.train_batch_size) == (1, 8)
    assert found.config.synchronizer.sync_interval == 20
    assert found.origins["synchronizer.sync_interval"] == "derived: as trainer.save_interval: no explorer waits"
    assert loaded("synchronizer.sync_interval=5", text=OFFLINE).config.synchronizer.sync_interval == 5
    assert loaded("buffer.total_steps=7", text=OFFLINE).config.synchronizer.sync_interval == 7


def test_a_batch_of_dpo_holds_half_as_many_pairs(loaded: Load) -> None:
    config = loaded("algorithm.algorithm_type=dpo", text=OFFLINE).config
    assert (config.repeat_times, config.train_batch_size, config.batch_size) == (2, 8, 4)


def test_other_modes_keep_their_own_stream(loaded: Load) -> None:
    assert loaded().config.experience_source == "stream"
    assert loaded("mode=train").config.experience_source == "stream"
    assert loaded("mode=train").config.is_whole is False


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["mode=both"],
            "algorithm.algorithm_type=sft learns from rows of data, and mode=both samples its own: set mode=train, "
            f"with {BUFFER}.storage_type=file and its path  (override)",
        ),
        (
            [f"{BUFFER}.storage_type=queue"],
            f"algorithm.algorithm_type=sft learns from rows of data: set {BUFFER}.storage_type=file and its path",
        ),
        ([f"{BUFFER}.path=null"], f"{BUFFER}.path is missing: give a file, a directory or a data set's name"),
        (
            ["algorithm.repeat_times=4"],
            "algorithm.repeat_times=4 with sft on rows of data: a row makes 1; leave it out",
        ),
        (
            ["algorithm.algorithm_type=dpo", "algorithm.repeat_times=4"],
            "algorithm.repeat_times=4 with dpo on rows of data: a row makes 2; leave it out",
        ),
        (
            ["algorithm.algorithm_type=dpo", "buffer.train_batch_size=7"],
            "buffer.train_batch_size=7 is not a multiple of repeat_times=2: use 6 or 8",
        ),
        (
            [f"{BUFFER}.schema_type=dpo"],
            f"{BUFFER}.schema_type=dpo, and sft reads rows of sft: leave it out",
        ),
        (
            ["algorithm.algorithm_type=cpt", f"{BUFFER}.format.prompt_type=chatpair"],
            f"{BUFFER}.format.prompt_type=chatpair has an answer, and cpt learns a whole text: use plaintext or "
            "messages",
        ),
        (
            ["algorithm.sample_strategy=mix"],
            "algorithm.sample_strategy=mix adds rows to sampled experiences, and sft here has only rows: leave it out",
        ),
        (
            ["algorithm.policy_loss_fn=ppo"],
            "algorithm.policy_loss_fn=ppo learns from advantages, and rows of data have no rewards to make them of: "
            "leave it out",
        ),
        (
            ["algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=ppo", "algorithm.advantage_fn=grpo"],
            "algorithm.policy_loss_fn=ppo learns from advantages, and rows of data have no rewards to make them of: "
            "leave it out",
        ),
        (
            ["algorithm.policy_loss_fn=dpo"],
            "algorithm.policy_loss_fn=dpo learns from pairs, and rows of sft are no pairs: leave it out, or set "
            "algorithm_type=dpo",
        ),
        (
            ["algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=sft"],
            "algorithm.policy_loss_fn=sft learns from single answers, and rows of dpo are pairs: leave it out, or set "
            "algorithm_type=sft",
        ),
        (
            ["algorithm.advantage_fn=remax"],
            "algorithm.advantage_fn=remax, and rows of data are learned from without advantages: leave it out",
        ),
        (
            ["bus.credentials=somewhere"],
            "bus.credentials is for a bus that is there, and without bus.url the launcher starts a bus of its own",
        ),
    ],
)
def test_a_contradiction_on_rows_is_refused_with_what_to_change(
    refused: Refused, overrides: list[str], message: str
) -> None:
    assert any(problem.startswith(message) for problem in refused(*overrides, text=OFFLINE))


@pytest.mark.parametrize("loss", [name for name, part in POLICY_LOSSES.items() if part.learns_from_advantages])
@pytest.mark.parametrize("advantage", ["none", "grpo", "ppo"])
def test_a_loss_that_learns_from_advantages_is_refused_on_rows_and_none_of_them_is_asked_for(
    refused: Refused, loss: str, advantage: str
) -> None:
    told = refused(f"algorithm.policy_loss_fn={loss}", f"algorithm.advantage_fn={advantage}", text=OFFLINE)
    keys = [problem.partition(" ")[0].rstrip(",").partition("=")[0] for problem in told]
    assert keys == ["algorithm.policy_loss_fn", "algorithm.advantage_fn"][: 1 if advantage == "none" else 2]


@pytest.mark.parametrize(
    ("name", "loss"), [("sft", "sft_is"), ("cpt", "sft_phi"), ("raft", "sft"), ("dpo", "dpo"), ("cpt", "sft")]
)
def test_a_loss_of_single_answers_or_of_pairs_learns_from_rows_that_have_them(
    loaded: Load, name: str, loss: str
) -> None:
    config = loaded(f"algorithm.algorithm_type={name}", f"algorithm.policy_loss_fn={loss}", text=OFFLINE).config
    assert (config.experience_source, config.algorithm.policy_loss_fn) == ("rows", loss)


def test_a_batch_of_tasks_makes_a_step_with_the_expert_rows_beside_it(loaded: Load) -> None:
    found = loaded(text=MIXED)
    config = found.config
    assert (config.usual_batch_size, config.expert_batch_size, config.train_batch_size) == (256, 64, 320)
    assert found.origins["buffer.train_batch_size"] == "derived: batch_size 32 * repeat_times 8, and 64 expert rows"
    assert pace_of(config).steps_per_batch == 1.0


def test_a_given_step_is_divided_by_the_ratio(loaded: Load) -> None:
    config = loaded("buffer.train_batch_size=160", text=MIXED).config
    assert (config.usual_batch_size, config.expert_batch_size) == (128, 32)
    assert pace_of(config).steps_per_batch == 2.0
    alone = loaded("buffer.train_batch_size=160", "buffer.batch_size=null", text=MIXED).config
    assert alone.batch_size == 16


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.sample_strategy_args.sft_dataset_name=other"],
            "algorithm.sample_strategy=mix takes expert rows from buffer.trainer_input.auxiliary_buffers.other, which "
            "is not there (there: sft_dataset): add it, or name another in sample_strategy_args.sft_dataset_name",
        ),
        (
            ["buffer.trainer_input.auxiliary_buffers.sft_dataset.path=null"],
            "buffer.trainer_input.auxiliary_buffers.sft_dataset needs storage_type=file and a path: it has file and "
            "None",
        ),
        (
            ["algorithm.sample_strategy_args.expert_data_ratio=1.5"],
            "algorithm.sample_strategy_args.expert_data_ratio=1.5 is no share of a batch: use 0 or more, below 1",
        ),
        (
            ["buffer.train_batch_size=99"],
            "buffer.train_batch_size=99 less 20 expert rows is not a multiple of repeat_times=8: use 90 or 100",
        ),
        (
            ["algorithm.sample_strategy_args.expert_data_ratio=0.9", "buffer.train_batch_size=8"],
            "algorithm.sample_strategy_args.expert_data_ratio=0.9 of train_batch_size=8 are 8 expert rows, which leave "
            "none for sampled experiences: use a smaller ratio, or a larger batch",
        ),
        (
            ["algorithm.policy_loss_fn=ppo"],
            "algorithm.sample_strategy=mix adds expert rows, which have advantage 0, and policy_loss_fn=ppo learns "
            "from advantages alone: use policy_loss_fn=mix or mix_chord, or leave it out",
        ),
        (
            ["algorithm.algorithm_type=pairwise_opmd", "algorithm.sample_strategy=mix"],
            "algorithm.sample_strategy=mix adds expert rows, which have advantage 0, and policy_loss_fn=pairwise_opmd "
            "learns from advantages alone: use policy_loss_fn=mix or mix_chord, or leave it out",
        ),
        (
            ["algorithm.policy_loss_fn=dpo", "algorithm.repeat_times=2"],
            "algorithm.sample_strategy=mix adds expert rows, which are no pairs, and policy_loss_fn=dpo learns from "
            "pairs: leave it out",
        ),
    ],
)
def test_expert_rows_that_do_not_fit_are_refused(refused: Refused, overrides: list[str], message: str) -> None:
    problems = refused(*overrides, text=MIXED)
    assert any(problem.startswith(message) for problem in problems), problems


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.policy_loss_fn=mix_chord"],
        ["algorithm.algorithm_type=ppo", "algorithm.policy_loss_fn=mix", "algorithm.sample_strategy=mix"],
        ["algorithm.algorithm_type=raft", "algorithm.sample_strategy=mix"],
        ["algorithm.policy_loss_fn=ppo", "algorithm.sample_strategy_args.expert_data_ratio=0"],
    ],
)
def test_expert_rows_that_are_learned_from_or_that_are_none_are_accepted(loaded: Load, overrides: list[str]) -> None:
    assert loaded(*overrides, text=MIXED).config.mixing is not None


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.7, 0.95])
def test_the_smallest_step_for_so_many_sampled_experiences_leaves_room_for_exactly_them(ratio: float) -> None:
    mixing = Mixing(ratio)
    for usual in range(1, 300):
        whole = mixing.whole(usual)
        assert whole - mixing.experts(whole) == usual
        assert whole == 1 or whole - 1 - mixing.experts(whole - 1) < usual


def test_an_auxiliary_buffer_that_nobody_reads_is_noticed(loaded: Load) -> None:
    (note,) = loaded("algorithm.algorithm_type=grpo", "algorithm.sample_strategy_args=null", text=MIXED).notes
    assert note.startswith("buffer.trainer_input.auxiliary_buffers.sft_dataset is not read")
