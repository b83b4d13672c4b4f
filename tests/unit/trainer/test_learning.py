"""What the learner makes of a batch before the models are updated, against numbers worked out by hand."""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.config.tree import RunConfig
from services.trainer.backends.fake import REFERENCE_LAG, VALUE, FakeBackend
from services.trainer.backends.port import Floats, Measure, Sequence
from services.trainer.intake import Batch
from services.trainer.learning import Learner


class Recorder(FakeBackend):
    """A fake backend that keeps what each model was last updated with, in the order of the updates."""

    def __init__(self) -> None:
        super().__init__(seconds_per_step=0.0)
        self.updates: dict[str, list[Sequence]] = {}
        self.kl_coef = 0.0

    def measured(self, sequences: Rows[Sequence], measures: Rows[Measure]) -> dict[Measure, list[Floats]]:
        found = super().measured(sequences, measures)
        return found | {"logprob": [sequence.old_logprobs + np.float32(0.5) for sequence in sequences]}

    def update_critic(self, sequences: Rows[Sequence]) -> dict[str, float]:
        self.updates["critic"] = list(sequences)
        return super().update_critic(sequences)

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        self.updates["actor"], self.kl_coef = list(sequences), kl_coef
        return {**super().update_actor(sequences, step, kl_coef), "actor/kl_loss": 0.3}


Learn = Callable[..., tuple[Recorder, Learner, dict[str, float]]]


@pytest.fixture
def learned(group) -> Learn:
    """One step of an algorithm on a batch of one group with rewards 0, 0, 1, 1, or another."""

    def learn(batch: Batch | None = None, trainer: Any = None, **algorithm: Any) -> Any:
        config = RunConfig.model_validate({"algorithm": {"kl_loss_fn": "none", **algorithm}, "trainer": trainer or {}})
        backend = Recorder()
        learner = Learner(config, backend)
        return backend, learner, learner.learn(batch or Batch(groups=[group(0)]), 1)

    return learn


def _advantages(backend: Recorder) -> list[list[float]]:
    return [row.advantages.tolist() for row in backend.updates["actor"]]


def test_a_group_of_answers_has_its_advantage_on_every_token(learned: Learn) -> None:
    backend, _, metrics = learned(algorithm_type="grpo")
    assert _advantages(backend) == [pytest.approx([sign * 0.8660] * 3, abs=1e-4) for sign in (-1, -1, 1, 1)]
    assert metrics["critic/rewards/mean"] == metrics["critic/score/mean"] == 0.5
    assert metrics["perf/total_num_tokens"] == 20.0
    assert "time/ref" not in metrics


def test_groups_of_different_sizes_are_held_against_themselves_and_scaled_by_the_batch(learned: Learn, group) -> None:
    batch = Batch(groups=[group(0, (0.0, 2.0)), group(1, (1.0, 2.0, 3.0)), group(2, (4.0,))])
    backend, _, _ = learned(batch, algorithm_type="grpo", advantage_fn_args={"std_cal_level": "batch"})
    std = np.std([0.0, 2.0, 1.0, 2.0, 3.0, 4.0], ddof=1)
    expected = np.array([-1.0, 1.0, -1.0, 0.0, 1.0, 4.0]) / std
    assert [values[0] for values in _advantages(backend)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_kl_penalty_lowers_the_rewards_of_tokens(learned: Learn) -> None:
    backend, _, metrics = learned(
        algorithm_type="reinforceplusplus", kl_penalty_fn="k1", kl_penalty_fn_args={"kl_coef": 0.4}
    )
    penalty = 0.4 * REFERENCE_LAG
    assert backend.updates["actor"][0].returns == pytest.approx([-3 * penalty, -2 * penalty, -penalty])
    assert backend.updates["actor"][3].returns == pytest.approx([1 - 3 * penalty, 1 - 2 * penalty, 1 - penalty])
    assert metrics["critic/score/mean"] == 0.5
    assert metrics["critic/rewards/mean"] == pytest.approx(0.5 - 3 * penalty)
    assert (metrics["critic/kl"], metrics["critic/kl_coef"]) == (REFERENCE_LAG, 0.4)


def test_a_kl_penalty_reaches_the_advantage_of_a_group_too(learned: Learn, group) -> None:
    batch = Batch(groups=[group(0, (0.0, 1.0))])
    masked = batch.groups[0].experiences[1].model_copy(update={"action_mask": np.array([1, 0, 0], np.uint8)})
    batch.groups[0] = batch.groups[0].model_copy(update={"experiences": (batch.groups[0].experiences[0], masked)})
    backend, _, _ = learned(batch, algorithm_type="opmd", kl_penalty_fn="k1", kl_penalty_fn_args={"kl_coef": 0.4})
    rewards = [0.0 - 0.4 * 3 * REFERENCE_LAG, 1.0 - 0.4 * REFERENCE_LAG]
    mean = sum(rewards) / 2
    assert [values[0] for values in _advantages(backend)] == pytest.approx([rewards[0] - mean, rewards[1] - mean])


def test_coefficients_that_adapt_follow_the_kl_and_go_on_from_a_checkpoint(
    learned: Learn, group, tmp_path: Path
) -> None:
    adaptive = {"kl_coef": 0.1, "adaptive": True, "horizon": 100}
    algorithm = {
        "algorithm_type": "grpo",
        "kl_penalty_fn": "k1",
        "kl_penalty_fn_args": {**adaptive, "target_kl": 0.1},
        "kl_loss_fn": "k2",
        "kl_loss_fn_args": {**adaptive, "target_kl": 1.0},
    }
    backend, learner, _ = learned(**algorithm)
    learner.write_checkpoint(tmp_path)
    other, resumed, _ = learned(**algorithm)
    resumed.start(tmp_path)
    for each in (learner, resumed):
        metrics = each.learn(Batch(groups=[group(1)]), 2)
        assert metrics["critic/kl_coef"] == pytest.approx(0.1 * (1 + 0.2 * 4 / 100))
    assert backend.kl_coef == other.kl_coef == pytest.approx(0.1 * (1 - 0.2 * 4 / 100))
    assert backend.digest == other.digest


def test_a_critic_learns_returns_and_is_alone_in_the_warm_up(learned: Learn, group) -> None:
    backend, learner, metrics = learned(algorithm_type="ppo", repeat_times=4, trainer={"critic_warmup": 1})
    assert [row.returns.tolist() for row in backend.updates["critic"] if row.returns is not None] == [
        [0.0] * 3,
        [0.0] * 3,
        [1.0] * 3,
        [1.0] * 3,
    ]
    assert "actor" not in backend.updates
    assert "actor/pg_loss" not in metrics
    assert metrics["critic/values/mean"] == VALUE
    assert metrics["critic/returns/max"] == 1.0
    learner.learn(Batch(groups=[group(1)]), 2)
    assert list(backend.updates) == ["critic", "actor"]
    whitened = 0.5 / np.sqrt(0.25 * 12 / 11)
    assert _advantages(backend) == [pytest.approx([sign * whitened] * 3, rel=1e-5) for sign in (-1, -1, 1, 1)]


def test_the_trainers_own_logprobs_stand_beside_the_samplers_where_the_loss_reads_both(learned: Learn) -> None:
    backend, _, metrics = learned(algorithm_type="grpo", bypass_old_logprobs=False)
    assert backend.updates["actor"][0].old_logprobs.tolist() == [-0.5] * 3
    assert backend.updates["actor"][0].proximal_logprobs is None
    assert metrics["rollout_corr/kl"] == -0.5
    backend, _, _ = learned(algorithm_type="grpo", bypass_old_logprobs=False, policy_loss_fn="tis")
    (row, *_), proximal = backend.updates["actor"], backend.updates["actor"][0].proximal_logprobs
    assert row.old_logprobs.tolist() == [-1.0] * 3
    assert proximal is not None
    assert proximal.tolist() == [-0.5] * 3


def test_a_correction_weighs_and_masks_by_the_trainers_own_logprobs(learned: Learn, group) -> None:
    """The trainer is half a nat above the sampler on each of three tokens: the response's weight is e^1.5, cut at 4."""
    correction = {"rollout_is": "sequence", "rollout_is_threshold": 4.0, "rollout_rs": "token_k1"}
    batch = Batch(groups=[group(0, (0.0, 1.0))], experts=[group(5, (9.0,))])
    backend, _, metrics = learned(
        batch, algorithm_type="mix", rollout_correction={**correction, "rollout_rs_threshold": 2.0}
    )
    *usual, expert = backend.updates["actor"]
    assert [row.weights.tolist() for row in usual if row.weights is not None] == [[4.0] * 3] * 2
    assert [row.old_logprobs.tolist() for row in usual] == [[-0.5] * 3] * 2
    assert expert.weights is not None
    assert expert.weights.tolist() == [1.0] * 3
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(np.exp(1.5))
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 0.0
    assert metrics["rollout/logprob_diff"] == 0.5
    backend, _, metrics = learned(
        batch, algorithm_type="mix", rollout_correction={**correction, "rollout_rs_threshold": 1.5}
    )
    assert [row.action_mask.tolist() for row in backend.updates["actor"]] == [[0] * 3, [0] * 3, [1] * 3]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 1.0


def test_entropy_clipping_reads_the_trainers_own_policy(learned: Learn) -> None:
    """Log-probs of -.5 and entropies of 1 make `p (H + log p)` .303 on every token: nothing stands out."""
    backend, _, metrics = learned(algorithm_type="grpo", advantage_fn="clipb")
    assert metrics["advantage/ES"] == pytest.approx(np.exp(-0.5) * (1.0 - 0.5))
    assert metrics["advantage/frac_clipped"] == 0.0
    assert backend.updates["actor"][0].old_logprobs.tolist() == [-1.0] * 3
    _, _, metrics = learned(algorithm_type="grpo", advantage_fn="clipv")
    assert metrics["advantage/stdD"] == 0.0


def test_expert_rows_are_trained_on_without_an_advantage(learned: Learn, group) -> None:
    batch = Batch(groups=[group(0, (0.0, 1.0))], experts=[group(5, (9.0,))])
    backend, _, metrics = learned(batch, algorithm_type="mix", kl_loss_fn="k2")
    expert = backend.updates["actor"][-1]
    assert expert.is_expert
    assert expert.advantages.tolist() == [0.0] * 3
    assert expert.reference_logprobs is not None
    assert metrics["critic/rewards/max"] == 1.0


def test_what_experiences_lack_is_told(learned: Learn) -> None:
    with pytest.raises(ValueError, match=r"reads a teacher's log-probs, and 4 of 4 experiences have none"):
        learned(algorithm_type="on_policy_distill")


def test_a_teacher_is_what_tokens_are_held_against(learned: Learn, group) -> None:
    taught = group(0, (0.0, 0.0))
    teacher = np.array([-0.5, -1.0, -3.0], np.float32)
    experiences = tuple(each.model_copy(update={"teacher_logprobs": teacher}) for each in taught.experiences)
    batch = Batch(groups=[taught.model_copy(update={"experiences": experiences})])
    backend, _, metrics = learned(batch, algorithm_type="on_policy_distill")
    assert _advantages(backend) == [[0.5, 0.0, -2.0]] * 2
    assert metrics["advantage/kl/mean"] == pytest.approx(1.5)


def test_a_score_without_an_action_token_still_counts_among_its_group(learned: Learn, group) -> None:
    batch = Batch(groups=[group(0, (0.0, 1.0))])
    silent = batch.groups[0].experiences[1].model_copy(update={"action_mask": np.zeros(3, np.uint8)})
    batch.groups[0] = batch.groups[0].model_copy(update={"experiences": (batch.groups[0].experiences[0], silent)})
    backend, _, _ = learned(batch, algorithm_type="opmd")
    assert [values[0] for values in _advantages(backend)] == [-0.5, 0.5]
    assert replace(backend.updates["actor"][1]).action_mask.sum() == 0
