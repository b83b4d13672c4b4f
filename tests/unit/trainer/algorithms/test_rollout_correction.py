"""A rollout correction and the gap to the sampler, against the numbers of veRL's own functions."""

import math
from typing import Any

import pytest
import torch
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask,
)

from services.config.rollout_correction import OPTIONS, RolloutCorrection
from services.trainer.algorithms.gap import completed, gap, whole
from services.trainer.algorithms.rollout_correction import at_update, kept, weights
from services.trainer.algorithms.rollout_metrics import Corrected, corrected
from services.trainer.algorithms.totals import Totals

CASES: list[dict[str, Any]] = [
    {"rollout_is": "token"},
    {"rollout_is": "token", "rollout_is_threshold": 1.1, "rollout_is_batch_normalize": True},
    {"rollout_is": "token", "rollout_is_threshold": "0.7_1.2"},
    {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.3_1.5", "rollout_is_batch_normalize": True},
    *({"rollout_rs": name, "rollout_rs_threshold": "0.6_1.6"} for name in OPTIONS if name.endswith("k1")),
    {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 1.1},
    *({"rollout_rs": name, "rollout_rs_threshold": 0.15} for name in OPTIONS if not name.endswith("k1")),
    {"rollout_rs": "token_k1, seq_max_k2,token_k1", "rollout_rs_threshold": "0.6_1.8,0.3", "rollout_is": "token"},
]


def _batch(rows: int = 6, length: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs of a trainer and a sampler, and a mask with an empty row; beyond the mask there is nonsense."""
    chance = torch.Generator().manual_seed(3)
    sampled = -3 * torch.rand(rows, length, generator=chance)
    own = sampled + 0.3 * torch.randn(rows, length, generator=chance)
    mask = (torch.rand(rows, length, generator=chance) > 0.4).float()
    mask[2] = 0
    return own, sampled, mask


def _corrected(**given: Any) -> Corrected:
    own, sampled, mask = _batch()
    return corrected(own - sampled, mask, RolloutCorrection(**given))


@pytest.mark.parametrize("case", CASES, ids=[" ".join(map(str, case.values())) for case in CASES])
def test_weights_mask_and_metrics_are_verls(case: dict[str, Any]) -> None:
    own, sampled, mask = _batch()
    found = _corrected(**case)
    proto, left, metrics = compute_rollout_correction_and_rejection_mask(own, sampled, mask, **case)
    torch.testing.assert_close(found.mask, left)
    assert (found.weights is None) == (proto is None)
    if found.weights is not None:
        torch.testing.assert_close(found.weights, proto.batch["rollout_is_weights"])
    of_gap = {f"rollout_corr/{name}" for name in compute_offpolicy_metrics(own, sampled, mask)}
    expected = {name: value for name, value in metrics.items() if name not in of_gap}
    told = {f"rollout_corr/{name}": value for name, value in found.metrics.items()}
    assert told == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0 < found.mask.sum() <= mask.sum()


def test_the_gap_is_what_verl_measures_and_its_parts_add_up() -> None:
    own, sampled, mask = _batch()
    metrics = completed(whole(gap(own, sampled, mask, Totals.of(mask))), float(mask.sum()))
    for name, value in compute_offpolicy_metrics(own, sampled, mask).items():
        assert metrics.pop(f"rollout_corr/{name}") == pytest.approx(value, rel=1e-4, abs=1e-6), name
    moved = (own.exp() - sampled.exp()).abs()[mask > 0]
    far = (own - sampled).abs()[mask > 0]
    assert metrics == pytest.approx(
        {
            "rollout/logprob_diff": float(far.mean()),
            "rollout/logprob_diff_max": float(far.max()),
            "training/rollout_probs_diff_mean": float(moved.mean()),
            "training/rollout_probs_diff_max": float(moved.max()),
            "training/rollout_probs_diff_std": float(moved.std()),
        },
        rel=1e-4,
    )
    parts = [gap(own[rows], sampled[rows], mask[rows], Totals.of(mask)) for rows in ([0, 1], [2, 3, 4], [5], [])]
    for name, value in gap(own, sampled, mask, Totals.of(mask)).shares.items():
        assert float(sum(part.shares[name] for part in parts)) == pytest.approx(float(value), rel=1e-5), name
    nothing = whole(gap(own[:0], sampled[:0], mask[:0], Totals.of(mask)))
    assert not any(name.endswith(("_max", "_min")) for name in completed(nothing, 0.0))


@pytest.mark.parametrize(
    ("ratios", "level"), [("token", "token_k1"), ("sequence", "seq_sum_k1"), ("geometric", "seq_mean_k1")]
)
def test_bounds_by_their_earlier_names_are_those_of_the_ratio(ratios: str, level: str) -> None:
    """`exp(k1)` is the ratio's reciprocal: bounds that are not each other's reciprocal change places."""
    earlier = _corrected(rollout_rs=ratios, rollout_rs_threshold=1.25, rollout_rs_threshold_lower=0.5)
    assert earlier.mask.tolist() == _corrected(rollout_rs=level, rollout_rs_threshold="0.8_2.0").mask.tolist()
    own, sampled, mask = _batch()
    ratio = (own - sampled).exp()
    if ratios == "token":
        assert earlier.mask.tolist() == (mask * (ratio >= 0.5) * (ratio <= 1.25)).tolist()


def test_a_token_that_the_trainer_would_hardly_sample_vetoes_its_response() -> None:
    log_ratio, mask = torch.tensor([[0.0, -8.0], [0.0, -8.0], [0.0, -6.0]]), torch.tensor([[1.0, 1], [1, 0], [1, 1]])
    found = corrected(log_ratio, mask, RolloutCorrection(rollout_token_veto_threshold=1e-3))
    assert found.mask.tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    assert found.metrics == pytest.approx(
        {
            "rollout_is_veto_fraction": 1 / 3,
            "rollout_is_catastrophic_token_fraction": 1 / 5,
            "rollout_rs_masked_fraction": 2 / 5,
            "rollout_rs_seq_masked_fraction": 1 / 3,
        }
    )


def test_in_bypass_mode_the_parts_weigh_as_the_whole_does() -> None:
    own, sampled, mask = _batch()
    given = RolloutCorrection(
        rollout_is="sequence",
        rollout_rs="seq_mean_k2",
        rollout_rs_threshold=0.04,
        bypass_mode=True,
        loss_type="reinforce",
    )
    expert = torch.tensor([False] * 5 + [True])
    log_ratio, totals = own - sampled, Totals.of(mask, expert)
    every, metrics = at_update(log_ratio, mask, expert, given, totals)
    usual = log_ratio[:5], mask[:5]
    torch.testing.assert_close(every[:5], weights(*usual, given).applied * kept(*usual, given))
    assert every[5].tolist() == [1.0] * 9
    whole_batch = corrected(*usual, given).metrics
    for name, value in metrics.items():
        assert float(value) == pytest.approx(whole_batch[name], rel=1e-5), name
    parts = [at_update(log_ratio[at], mask[at], expert[at], given, totals) for at in (slice(2), slice(2, 6))]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), every)
    for name, value in metrics.items():
        assert float(sum(part[1][name] for part in parts)) == pytest.approx(float(value), rel=1e-5), name
    clipped, _ = at_update(log_ratio, mask, expert, given.model_copy(update={"loss_type": "ppo_clip"}), totals)
    assert set(clipped.flatten().tolist()) == {0.0, 1.0}


def test_nonsense_beyond_the_mask_and_a_batch_without_actions_are_harmless() -> None:
    own, sampled, mask = _batch()
    dirty = torch.where(mask > 0, own, torch.tensor(math.nan))
    given = RolloutCorrection(rollout_is="sequence", rollout_rs="seq_max_k3,token_k1", rollout_rs_threshold=2.0)
    clean, found = corrected(own - sampled, mask, given), corrected(dirty - sampled, mask, given)
    assert found.mask.tolist() == clean.mask.tolist()
    assert found.weights is not None
    assert clean.weights is not None
    assert found.weights.tolist() == clean.weights.tolist()
    assert found.metrics == pytest.approx(clean.metrics)
    empty = corrected(own - sampled, mask * 0, given)
    assert (empty.mask.sum(), empty.metrics) == (0.0, {})
