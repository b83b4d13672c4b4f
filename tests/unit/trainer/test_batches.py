"""Advantages and the metrics of a batch, against numbers worked out by hand."""

import pytest
import torch

from services.trainer.algorithms.advantages import advantage
from services.trainer.batches import described, sequences
from services.trainer.intake import Intake
from services.trainer.ledger import Ledger

RUN = "tests/trainer"


def test_grpo_centres_and_scales_within_the_group() -> None:
    values = advantage("grpo")(torch.tensor([[0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]))
    assert values[0].tolist() == pytest.approx([-0.8660, -0.8660, 0.8660, 0.8660], abs=1e-4)
    assert values[1].tolist() == [0.0, 0.0, 0.0, 0.0]


def test_grpo_of_a_group_of_one_is_its_reward() -> None:
    assert advantage("grpo")(torch.tensor([[0.5]])).tolist() == [[0.5]]


def test_an_unknown_advantage_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="use one of grpo"):
        advantage("grop")
    with pytest.raises(ValueError, match="unexpected keyword argument 'epsilonn'"):
        advantage("grpo", epsilonn=1.0)


def test_a_batch_is_described_by_trinitys_names(group) -> None:
    intake = Intake(Ledger(), 4, RUN)
    intake.offer(1, group(0))
    batch = intake.take()
    prepared = sequences(batch, advantage("grpo"))
    metrics = described(batch, prepared, step=6)
    assert prepared[0].advantages.tolist() == pytest.approx([-0.8660] * 3, abs=1e-4)
    assert metrics["critic/rewards/mean"] == 0.5
    assert metrics["critic/advantages/max"] == pytest.approx(0.8660, abs=1e-4)
    assert metrics["response_length/mean"] == 3.0
    assert metrics["sample/model_version_drift/mean"] == 1.0
    assert metrics["sample/accuracy/mean"] == 0.5
