"""Which expert rows go into a step is a function of the step: whoever resumes or replays takes the same."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.experiences import GroupSampled
from services.config.tree import RunConfig
from services.rollout.config import DataSelectorConfig
from services.rollout.ordering import order
from services.trainer.offline.errors import DataError
from services.trainer.offline.experts import ExpertRows, experts_of

SELECTOR = {"selector_type": "shuffle", "seed": 7}


@pytest.fixture
def mixing(written: Callable[..., str]) -> Callable[..., RunConfig]:
    def make(rows: list[dict[str, Any]], ratio: float = 0.5, **buffer: int) -> RunConfig:
        expert = {
            "storage_type": "file",
            "path": written(rows),
            "format": {"prompt_type": "plaintext"},
            "data_selector": SELECTOR,
        }
        tree = {
            "algorithm": {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": ratio}},
            "model": {"model_path": "none", "max_model_len": 64},
            "buffer": {"trainer_input": {"auxiliary_buffers": {"sft_dataset": expert}}, **buffer},
            "trainer": {"trainer_type": "fake"},
        }
        return RunConfig.model_validate(tree)

    return make


def rows(number: int, long: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}?", "response": "x" * 99 if n in long else "y"} for n in range(number)]


def taken(experts: ExpertRows, steps: range) -> list[list[int]]:
    return [[group.task.index for group in experts.of(step)] for step in steps]


def opened(config: RunConfig) -> ExpertRows:
    found = experts_of(config)
    assert found is not None
    return found


def test_steps_take_the_rows_of_each_epoch_one_after_the_other(mixing: Callable[..., RunConfig]) -> None:
    config = mixing(rows(5), batch_size=1, train_batch_size=4)
    assert (config.expert_batch_size, config.usual_batch_size) == (2, 2)
    selector = DataSelectorConfig(selector_type="shuffle", seed=7)
    sequence = [int(row) for epoch in range(3) for row in order(5, epoch, selector)]
    assert taken(opened(config), range(1, 8)) == [sequence[2 * n : 2 * n + 2] for n in range(7)]


def test_any_step_can_be_asked_for_first(mixing: Callable[..., RunConfig]) -> None:
    config = mixing(rows(5), train_batch_size=4)
    before: list[list[GroupSampled]] = [opened(config).of(step) for step in range(1, 20)]
    again = opened(config)
    assert [again.of(step) for step in (17, 3)] == [before[16], before[2]]


def test_rows_of_no_use_are_left_out_before_the_rest_is_divided(mixing: Callable[..., RunConfig]) -> None:
    experts = opened(mixing(rows(6, long=(0, 4)), train_batch_size=4))
    assert experts.left_out == {"too_long": 2}
    assert sorted(row for step in taken(experts, range(1, 3)) for row in step) == [1, 2, 3, 5]


def test_expert_data_of_which_no_row_is_of_use_is_refused(mixing: Callable[..., RunConfig]) -> None:
    with pytest.raises(DataError, match=r"no row can be trained on: \{'too_long': 2\}"):
        opened(mixing(rows(2, long=(0, 1)), train_batch_size=4))


def test_a_ratio_of_zero_reads_no_data(mixing: Callable[..., RunConfig]) -> None:
    assert experts_of(mixing(rows(2), ratio=0.0, train_batch_size=8)) is None
