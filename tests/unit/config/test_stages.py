"""Stages: each is the whole file with its own keys written over, and all are checked before the first starts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.load import Loaded
from services.config.show import render
from services.config.stages import merged

Load = Callable[..., Loaded]
Refused = Callable[..., list[str]]

STAGED = """\
project: p
name: n
algorithm:
  repeat_times: 8
  optimizer:
    lr: 1e-5
model:
  model_path: some/model
buffer:
  batch_size: 4
  explorer_input:
    taskset:
      name: sums
      path: sums.jsonl
stages:
  - stage_name: warmup
    mode: train
    algorithm:
      algorithm_type: sft
      repeat_times: 1
      optimizer:
        lr: 1e-4
    buffer:
      trainer_input:
        experience_buffer:
          storage_type: file
          path: worked.jsonl
  - stage_name: rl
    algorithm:
      algorithm_type: grpo
      optimizer:
        lr_scheduler_type: cosine
"""


def test_a_stage_overrides_the_keys_that_it_writes_and_no_others(loaded: Load) -> None:
    first, second = (stage.config for stage in loaded(text=STAGED).stages)
    assert (first.mode, first.algorithm.algorithm_type, first.repeat_times) == ("train", "sft", 1)
    assert (first.algorithm.optimizer.lr, first.algorithm.optimizer.lr_scheduler_type) == (1e-4, "constant")
    assert (first.batch_size, first.experience_source) == (4, "rows")
    assert (second.mode, second.algorithm.algorithm_type, second.repeat_times) == ("both", "grpo", 8)
    assert (second.algorithm.optimizer.lr, second.algorithm.optimizer.lr_scheduler_type) == (1e-5, "cosine")
    assert second.buffer.trainer_input.experience_buffer is None
    assert (first.stages, second.stages) == ([], [])


def test_each_stage_is_a_run_in_a_directory_of_the_whole(loaded: Load) -> None:
    first, second = (stage.config for stage in loaded(text=STAGED).stages)
    assert (first.run_name, second.run_name) == ("p/n-warmup", "p/n-rl")
    root = Path("checkpoints").absolute()
    assert (first.run_dir, second.run_dir) == (root / "p" / "n" / "warmup", root / "p" / "n" / "rl")
    (chosen, _) = loaded("checkpoint_job_dir=/data/job", text=STAGED).stages
    assert chosen.config.run_dir == Path("/data/job/warmup")


def test_the_origin_of_a_value_is_where_its_stage_or_the_whole_has_written_it(loaded: Load) -> None:
    first, second = loaded("stages.1.algorithm.optimizer.lr=2e-5", text=STAGED).stages
    assert first.origins["algorithm.optimizer.lr"] == "c.yaml:22"
    assert first.origins["buffer.batch_size"] == "c.yaml:10"
    assert second.origins["algorithm.repeat_times"] == "c.yaml:4"
    assert (second.config.algorithm.optimizer.lr, second.origins["algorithm.optimizer.lr"]) == (2e-5, "override")
    assert "algorithm_type: sft" in render(first)


def test_a_list_or_a_value_replaces_what_stood_there_and_null_empties_it() -> None:
    under = {"a": {"b": [1, 2], "c": {"d": 1}, "e": 5}}
    assert merged(under, {"a": {"b": [3], "c": None}}) == {"a": {"b": [3], "c": None, "e": 5}}


def test_problems_of_all_stages_are_told_at_once_with_their_stage(refused: Refused) -> None:
    problems = refused(
        "stages.0.mode=both", "stages.1.algorithm.repeat_times=1", "model.max_response_tokens=0", text=STAGED
    )
    told = "\n".join(problems)
    assert "stage warmup: algorithm.algorithm_type=sft learns from rows of data, and mode=both" in told
    assert "stage rl: algorithm.repeat_times=1 leaves grpo nothing to compare" in told
    assert told.count("max_response_tokens=0 is too small") == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "stages.1.stage_name=warmup",
            "stages[1].stage_name=warmup is the name of an earlier stage: give each its own",
        ),
        ("stages.0.stage_name=a/b", "stages[0].stage_name='a/b' cannot name a directory"),
        ("stages.0.algoritm={}", "stages[0].algoritm is not a known key: did you mean stages[0].algorithm?"),
    ],
)
def test_a_stage_that_cannot_be_named_or_read_is_refused(refused: Refused, override: str, message: str) -> None:
    assert any(problem.startswith(message) for problem in refused(override, text=STAGED))
