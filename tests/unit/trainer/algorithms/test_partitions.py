"""However the rows of a batch are parted, the parts' losses, gradients and metrics add up to those of the whole."""

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.algorithms.loss_arguments import AggregationMode
from services.trainer.algorithms import Totals, aggregate, policy_loss
from services.trainer.algorithms.losses import LOSSES

ROWS, LENGTH = 8, 6
MODES = get_args(AggregationMode)


def _batch(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return 2 * torch.rand(ROWS, LENGTH, generator=generator, dtype=torch.float64) - 1

    return {
        "logprob": noise().requires_grad_(),
        "old_logprob": noise(),
        "action_mask": noise() > 0,
        "advantages": noise(),
        "ref_logprob": noise(),
        "proximal_logprob": noise(),
        "weights": 1 + noise(),
        "expert_mask": noise()[:, 0] > 0,
    }


def _parts(seed: int, parts: int, unit: int) -> list[list[int]]:
    """The rows in `parts` parts, some of them perhaps empty; pairs stay together where `unit` is 2."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(0, parts, (ROWS // unit,), generator=generator).tolist()
    return [
        [row for place, own in enumerate(owner) if own == part for row in range(unit * place, unit * (place + 1))]
        for part in range(parts)
    ]


def _close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4))
def test_the_parts_of_a_policy_loss_add_up(name: str, mode: str, seed: int, parts: int) -> None:
    batch, loss_fn = _batch(seed), policy_loss(name, loss_agg_mode=mode)
    totals = Totals.of(batch["action_mask"], batch["expert_mask"])
    whole, metrics = loss_fn(**batch, totals=totals, step=3)
    (gradient,) = torch.autograd.grad(whole, batch["logprob"])
    shares = [
        loss_fn(**{key: value[rows] for key, value in batch.items()}, totals=totals, step=3)
        for rows in _parts(seed, parts, unit=2 if loss_fn.is_paired else 1)
    ]
    total = torch.stack([share for share, _ in shares]).sum()
    _close(total.detach(), whole.detach())
    _close(torch.autograd.grad(total, batch["logprob"])[0], gradient)
    for metric, value in metrics.items():
        _close(sum(each[metric] for _, each in shares), value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"mix", "mix_chord"}))
def test_without_totals_a_call_is_its_own_whole(name: str, mode: str) -> None:
    batch, loss_fn = _batch(7), policy_loss(name, loss_agg_mode=mode)
    alone, metrics = loss_fn(**batch)
    counted, same = loss_fn(**batch, totals=Totals.of(batch["action_mask"], batch["expert_mask"]))
    _close(alone.detach(), counted.detach())
    assert metrics == same


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LOSSES)
def test_what_stands_in_the_padding_does_not_matter(name: str, mode: str) -> None:
    """Padding of infinities and NaN changes neither loss nor metrics, and gets no gradient."""
    batch, loss_fn = _batch(11), policy_loss(name, loss_agg_mode=mode)
    mask = batch["action_mask"]
    totals = Totals.of(mask, batch["expert_mask"])
    clean, metrics = loss_fn(**batch, totals=totals, step=1)
    (gradient,) = torch.autograd.grad(clean, batch["logprob"])
    dirty = dict(batch)
    for key in ("logprob", "old_logprob", "ref_logprob", "proximal_logprob", "weights"):
        dirty[key] = torch.where(mask, batch[key].detach(), torch.tensor(float("-inf"), dtype=torch.float64))
    dirty["advantages"] = torch.where(mask, batch["advantages"], torch.tensor(float("nan"), dtype=torch.float64))
    dirty["logprob"].requires_grad_()
    loss, same = loss_fn(**dirty, totals=totals, step=1)
    _close(loss.detach(), clean.detach())
    _close(torch.autograd.grad(loss, dirty["logprob"])[0], torch.where(mask, gradient, 0.0))
    for metric, value in metrics.items():
        _close(same[metric], value)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *((name, {}) for name in LOSSES),
        ("rec", {"weight": "importance_sampling"}),
        ("rec", {"weight": "gspo_importance_sampling"}),
        ("tis", {"level": "sequence"}),
    ],
)
def test_a_policy_far_from_the_sampler_gives_no_infinite_gradient(name: str, args: dict[str, str]) -> None:
    batch = _batch(13)
    batch["old_logprob"] = batch["old_logprob"] - 5000
    loss, metrics = policy_loss(name, **args)(**batch, step=1)
    (gradient,) = torch.autograd.grad(loss, batch["logprob"])
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert all(abs(value) < float("inf") for value in metrics.values())


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3) / 3),
        ("seq-mean-token-sum", (3 + 3 + 0) / 3),
        ("seq-mean-token-mean", (1.5 + 3 + 0) / 3),
        ("seq-mean-token-sum-norm", 6 / 4),
    ],
)
def test_the_four_aggregations_of_three_rows(mode: str, expected: float) -> None:
    values = torch.tensor([[1.0, 2.0, 9.0, 9.0], [3.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert float(aggregate(values, mask, mode)) == pytest.approx(expected)


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="loss_agg_mode='mean' is not known: use one of token-mean, seq-mean"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean")
