"""Sequences and the metrics of a batch, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from services.config.reuse import ReuseRule
from services.trainer.batches import described, judged, sequences
from services.trainer.intake import Intake
from services.trainer.ledger import Ledger

RUN = "tests/trainer"


def test_a_batch_is_described_by_trinitys_names(group) -> None:
    intake = Intake(Ledger(), 4, RUN)
    intake.offer(1, group(0))
    metrics = described(intake.take(), step=6)
    assert metrics["response_length/mean"] == 3.0
    assert metrics["sample/model_version_drift/mean"] == 1.0
    assert metrics["sample/accuracy/mean"] == 0.5
    assert metrics["sample/task_count"] == 1.0
    assert metrics["sample/experience_count"] == 4.0


def test_sequences_come_in_stream_order_and_experts_behind_them(group) -> None:
    rows = sequences([group(7), group(3, (0.25, 0.75))], [group(0, (1.0,))])
    assert [row.reward for row in rows] == [0.0, 0.0, 1.0, 1.0, 0.25, 0.75, 1.0]
    assert [row.group for row in rows] == [0, 0, 0, 0, 1, 1, 2]
    assert [row.position for row in rows] == [0, 1, 2, 3, 0, 1, 0]
    assert [row.is_expert for row in rows] == [False] * 6 + [True]


def test_advantages_are_measured_where_the_policy_acted(group) -> None:
    first, second = sequences([group(0, (0.0, 2.0))])
    advantages = np.array([5.0, -1.0, 3.0], np.float32)
    first = replace(first, action_mask=np.array([0, 1, 1], np.uint8), advantages=advantages)
    metrics = judged([first, second], [np.zeros(3, np.float32), np.array([-0.5, 0.0, 2.0], np.float32)])
    assert metrics["critic/score/mean"] == 1.0
    assert metrics["critic/rewards/mean"] == 0.75
    assert metrics["critic/advantages/max"] == 3.0
    assert metrics["critic/advantages/mean"] == pytest.approx(0.4)
    assert "critic/returns/mean" not in metrics


def test_a_batch_with_reuse_tells_uses_and_the_staleness_of_what_was_trained_on_before(group) -> None:
    intake = Intake(Ledger(step=4), 4, RUN, reuse=ReuseRule(train_batch_size=12, capacity=100))
    for sequence in (1, 2, 3):
        intake.offer(sequence, group(sequence))
    first, _, third = (described(intake.take(), step) for step in (5, 6, 7))
    assert not any(name.startswith(("sample/use_count", "sample/reused")) for name in first)
    assert (third["sample/experience_count"], third["sample/task_count"]) == (12.0, 3.0)
    assert [third[f"sample/use_count/{which}"] for which in ("min", "mean", "max")] == [1.0, 2.0, 3.0]
    assert third["sample/reused_version_drift/mean"] == 2.0
