"""Each policy loss and its gradient against its formula, written token by token in float64 and differentiated by torch.

The formulas here share no code with the losses: they walk over the tokens that count, one by one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from services.trainer.algorithms import Totals, kl, policy_loss

Scalar = Any  # a float, or a tensor of one element


@dataclass(frozen=True)
class Token:
    """One token that counts, with what its row knows of all its tokens."""

    lp: torch.Tensor
    old: float
    prox: float
    adv: float
    row: "Row"


@dataclass(frozen=True)
class Row:
    lps: torch.Tensor
    olds: torch.Tensor
    proxes: torch.Tensor
    advs: torch.Tensor

    @property
    def drift(self) -> float:
        """Mean log-ratio to the sampler, without gradient."""
        return float((self.lps.detach() - self.olds).mean())


def _sg(value: torch.Tensor) -> float:
    return float(value.detach())


def _clip(value: Scalar, low: float, high: float) -> Scalar:
    return min(max(value, low), high)


def _ppo_like(ratio: Scalar, adv: float, low: float = 0.2, high: float = 0.2, dual: float | None = 3.0) -> Scalar:
    gain = min(ratio * adv, _clip(ratio, 1 - low, 1 + high) * adv)
    return -max(gain, dual * adv) if dual is not None and adv < 0 else -gain


def _ppo(token: Token) -> Scalar:
    return _ppo_like(torch.exp(token.lp - token.old), token.adv)


def _masked_ppo(token: Token) -> Scalar:
    return 0.0 if token.adv < 0 and -token.row.drift > -0.2 else _ppo(token)


def _policy_gradient(token: Token) -> Scalar:
    return -token.adv * torch.exp(token.lp - _sg(token.lp))


def _gspo(token: Token) -> Scalar:
    ratio = torch.exp(token.lp - _sg(token.lp) + token.row.drift)
    return _ppo_like(ratio, token.adv, 3e-4, 4e-4, dual=None)


def _sppo(token: Token) -> Scalar:
    inside = 1 / 1.3 <= math.exp(_sg(token.lp) - token.old) <= 1.3
    return -token.adv * (token.lp - token.old) if inside else 0.0


def _cispo(token: Token) -> Scalar:
    return -token.adv * _clip(math.exp(_sg(token.lp) - token.old), 0.0, 1.28) * token.lp


def _gate(ratio: Scalar, adv: float) -> Scalar:
    tau = 1.0 if adv > 0 else 1.05
    return torch.sigmoid(tau * (torch.as_tensor(ratio) - 1)) * 4 / tau


def _sapo(token: Token) -> Scalar:
    return -token.adv * _sg(_gate(torch.exp(token.lp - token.old), token.adv)) * token.lp


def _sapo_of_the_paper(token: Token) -> Scalar:
    return -token.adv * _gate(torch.exp(token.lp - token.old), token.adv)


def _topr(token: Token) -> Scalar:
    alpha = 1.0 if token.adv > 0 else min(math.exp(_sg(token.lp) - token.old), 1.0)
    return -alpha * token.adv * token.lp


def _rec(clip_mode: str, weight: str = "none", regularizer: str = "none") -> Callable[[Token], Scalar]:
    def loss(token: Token) -> Scalar:
        ratio, of_row = math.exp(_sg(token.lp) - token.old), math.exp(token.row.drift)
        near = 0.8 <= ratio <= 1.2
        judged = of_row if clip_mode == "gspo-one-side" else ratio
        one_side = judged <= 1.2 if token.adv > 0 else judged >= 0.8
        ring = near or (ratio <= 0.4 if token.adv > 0 else ratio >= 3.0)
        kept = {"none": True, "two-side": near, "ring": ring}.get(clip_mode, one_side)
        weights = {"importance_sampling": ratio, "gspo_importance_sampling": of_row, "advantage": math.exp(token.adv)}
        added = {"k2": 0.1 * (token.lp - token.old) ** 2, "forward-kl": -0.1 * token.lp}.get(regularizer, 0.0)
        return -token.adv * weights.get(weight, 1.0) * token.lp * kept + added

    return loss


def _phi(token: Token) -> Scalar:
    p = math.exp(_sg(token.lp))
    return -p * (1 - p) * token.lp


def _behaviour(token: Token, level: str = "token") -> float:
    if level == "sequence":
        return math.exp(float((token.row.proxes - token.row.olds).sum()))
    return math.exp(token.prox - token.old)


def _around(token: Token, weight: float, dual: float | None = 3.0) -> Scalar:
    return weight * _ppo_like(torch.exp(token.lp - token.prox), token.adv, dual=dual)


def _decoupled(cap: float) -> Callable[[Token], Scalar]:
    def loss(token: Token) -> Scalar:
        w = _behaviour(token)
        return _around(token, w if w <= cap else 0.0, dual=None)

    return loss


def _icepop(token: Token, level: str = "token") -> Scalar:
    w = _behaviour(token, level)
    return _around(token, w if 0.5 <= w <= 5 else 0.0)


def _geo_mask(token: Token) -> Scalar:
    w = math.exp(float((token.row.proxes - token.row.olds).mean()))
    return _around(token, float(0.7 <= w <= 1.2))


def _dppo_tv(token: Token) -> Scalar:
    moved = math.exp(_sg(token.lp)) - math.exp(token.old)
    keep = not (moved > 0.2 if token.adv > 0 else moved < -0.2)
    return -keep * token.adv * torch.exp(token.lp - token.old) + 1e-3 * (token.lp - token.old) ** 2


FORMULAS: list[tuple[str, dict[str, Any], Callable[[Token], Scalar]]] = [
    ("ppo", {}, _ppo),
    ("ppo", {"enable_sequence_masking": True, "delta_sequence_masking": -0.2}, _masked_ppo),
    ("ppo", {"fallback_to_policy_gradient": True}, _policy_gradient),
    ("gspo", {"loss_agg_mode": "token-mean"}, _gspo),
    ("sppo", {}, _sppo),
    ("cispo", {}, _cispo),
    ("sapo", {}, _sapo),
    ("sapo", {"differentiate_gate": True}, _sapo_of_the_paper),
    ("topr", {}, _topr),
    ("importance_sampling", {}, lambda token: -token.adv * torch.exp(token.lp - token.old)),
    ("reinforce", {}, lambda token: -token.adv * token.lp),
    ("opmd", {}, lambda token: -token.adv * token.lp / 2),
    *[("rec", {"clip_mode": mode}, _rec(mode)) for mode in ("none", "one-side", "two-side", "ring")],
    ("rec", {"clip_mode": "gspo-one-side", "loss_agg_mode": "token-mean"}, _rec("gspo-one-side")),
    *[
        ("rec", {"weight": weight}, _rec("none", weight))
        for weight in ("importance_sampling", "gspo_importance_sampling", "advantage")
    ],
    *[
        ("rec", {"regularizer": name, "regularizer_coef": 0.1}, _rec("none", "none", name))
        for name in ("k2", "forward-kl")
    ],
    ("sft", {}, lambda token: -token.lp),
    ("sft_is", {}, lambda token: -math.exp(_sg(token.lp)) * token.lp),
    ("sft_phi", {}, _phi),
    ("decoupled_ppo", {}, _decoupled(5.0)),
    ("decoupled_ppo", {"weight_cap": 1.5}, _decoupled(1.5)),
    (
        "decoupled_ppo",
        {"weight_cap": 1.5, "cap_action": "clamp"},
        lambda token: _around(token, min(_behaviour(token), 1.5), dual=None),
    ),
    ("decoupled_ppo", {"weight_cap": None}, lambda token: _around(token, _behaviour(token), dual=None)),
    ("tis", {}, lambda token: _around(token, min(_behaviour(token), 2.0))),
    ("tis", {"level": "sequence"}, lambda token: _around(token, min(_behaviour(token, "sequence"), 2.0))),
    ("icepop", {}, _icepop),
    ("icepop", {"level": "sequence"}, lambda token: _icepop(token, "sequence")),
    ("geo_mask", {"lower": 0.7, "upper": 1.2}, _geo_mask),
    ("dppo_tv", {}, _dppo_tv),
]


def _tokens(lp: torch.Tensor, standard: Any, prox: torch.Tensor) -> Iterator[Token]:
    for index, keep in enumerate(standard.mask):
        row = Row(lp[index, keep], standard.old[index, keep], prox[index, keep], standard.advantages[index, keep])
        for place in range(len(row.lps)):
            yield Token(row.lps[place], float(row.olds[place]), float(row.proxes[place]), float(row.advs[place]), row)


def _differentiated(loss: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(loss, at)
    return gradient


@pytest.mark.parametrize(("name", "args", "formula"), FORMULAS, ids=[f"{n}-{a}" for n, a, _ in FORMULAS])
def test_a_loss_and_its_gradient_follow_the_formula(
    name: str, args: dict[str, Any], formula: Callable[[Token], Scalar], standard
) -> None:
    standard = standard.double()
    prox = (standard.logprob + standard.ref) / 2
    at = standard.logprob.clone().requires_grad_()
    loss, _ = policy_loss(name, **args)(
        at, standard.old, standard.mask, standard.advantages, proximal_logprob=prox, **standard.extra()
    )
    again = standard.logprob.clone().requires_grad_()
    terms = [formula(token) for token in _tokens(again, standard, prox)]
    expected = torch.stack([torch.as_tensor(term, dtype=torch.float64) for term in terms]).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(_differentiated(loss, at), _differentiated(expected, again), rtol=1e-6, atol=1e-8)


def test_dpo_is_the_mean_over_pairs(standard) -> None:
    standard = standard.double()
    at = standard.logprob.clone().requires_grad_()
    rows = slice(4)
    loss, metrics = policy_loss("dpo", beta=0.3, label_smoothing=0.2)(
        at[rows], None, standard.mask[rows], None, ref_logprob=standard.ref[rows]
    )
    again = standard.logprob.clone().requires_grad_()
    gains = [(again[i] - standard.ref[i])[standard.mask[i]].sum() for i in range(4)]
    pairs = [(gains[0], gains[1]), (gains[2], gains[3])]
    logits = [0.3 * (chosen - rejected) for chosen, rejected in pairs]
    terms = [0.8 * torch.log1p(torch.exp(-z)) + 0.2 * torch.log1p(torch.exp(z)) for z in logits]
    expected = (terms[0] + terms[1]) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(_differentiated(loss, at), _differentiated(expected, again))
    of_rows = [_sg(gain) for gain in gains]
    assert metrics["accuracy_mean"] == ((of_rows[0] > of_rows[1]) + (of_rows[2] > of_rows[3])) / 2
    assert metrics["chosen_reward"] == pytest.approx(0.3 * (of_rows[0] + of_rows[2]) / 2)
    assert metrics["rejected_reward"] == pytest.approx(0.3 * (of_rows[1] + of_rows[3]) / 2)


def test_dpo_with_default_arguments_on_two_pairs(standard) -> None:
    """The reference sums over the whole micro-batch before the sigmoid and has 0.6265 here."""
    rows = slice(4)
    loss, _ = policy_loss("dpo")(
        standard.logprob[rows], None, standard.mask[rows], None, ref_logprob=standard.ref[rows]
    )
    assert loss.item() == pytest.approx(0.6660503, abs=1e-6)


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_pairwise_opmd_is_the_squared_difference_within_groups(tau: float, standard) -> None:
    """Against the formula over whole groups, with rewards whose group means are taken off as the advantage does."""
    standard = standard.double()
    groups = [[0, 2], [1, 3, 4]]
    rewards = torch.tensor([0.3, 1.0, -0.5, 0.0, 2.0], dtype=torch.float64)
    centred = rewards.clone()
    for group in groups:
        centred[group] -= rewards[group].mean()
    at = standard.logprob.clone().requires_grad_()
    advantages = centred.unsqueeze(-1).expand(5, 20)
    loss, _ = policy_loss("pairwise_opmd", tau=tau)(at, None, standard.mask, advantages)

    again = standard.logprob.clone().requires_grad_()
    sums = [again[i][standard.mask[i]].sum() for i in range(5)]
    differences = [rewards[i] - tau * (sums[i] - _sg(sums[i])) for i in range(5)]
    expected = torch.zeros((), dtype=torch.float64)
    for group in groups:
        mean = torch.stack([differences[i] for i in group]).mean()
        expected = expected + torch.stack([(differences[i] - mean) ** 2 for i in group]).sum()
    expected = expected / (standard.mask.sum() * max(1.0, tau))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(_differentiated(loss, at), _differentiated(expected, again))


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
def test_a_mixed_loss_normalises_each_kind_over_its_own_rows(name: str, standard) -> None:
    standard = standard.double()
    mask = standard.mask
    at = standard.logprob.clone().requires_grad_()
    loss, metrics = policy_loss(name)(
        at, standard.old, mask, standard.advantages, totals=Totals.of(mask, standard.expert), **standard.extra()
    )
    again = standard.logprob.clone().requires_grad_()
    usual: list[Any] = []
    expert: list[Any] = []
    for token in _tokens(again, standard, standard.old):
        of_expert = any(token.old in standard.old[i] for i in torch.where(standard.expert)[0])
        rule = _phi if name == "mix_chord" else (lambda each: -each.lp)
        (expert if of_expert else usual).append(rule(token) if of_expert else _ppo(token))
    expected = 0.9 * sum(usual) / len(usual) + 0.1 * sum(expert) / len(expert)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(_differentiated(loss, at), _differentiated(expected, again))
    assert metrics["usual/pg_loss"] == pytest.approx(_sg(sum(usual)) / len(usual))


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("k1", lambda d, w: 1.0),
        ("k2", lambda d, w: d),
        ("k3", lambda d, w: 1 - math.exp(-d)),
        ("low_var_kl", lambda d, w: 1 - math.exp(-d)),
        ("abs", lambda d, w: math.copysign(1.0, d)),
        ("corrected_k3", lambda d, w: w * (1 - math.exp(-d)) + (w if w < 2 else 0) * (math.exp(-d) - 1 + d)),
    ],
)
def test_a_kl_terms_gradient_is_its_slope(name: str, slope: Callable[[float, float], float], standard) -> None:
    """`d` is `logprob - ref`, `w` the ratio to the sampler, at most 2."""
    standard = standard.double()
    at = standard.logprob.clone().requires_grad_()
    gradient = _differentiated(kl(name)(at, standard.ref, standard.old).sum(), at)
    gaps = (standard.logprob - standard.ref).flatten().tolist()
    ratios = torch.exp(standard.logprob - standard.old).clamp(max=2).flatten().tolist()
    expected = [slope(gap, ratio) for gap, ratio in zip(gaps, ratios, strict=True)]
    torch.testing.assert_close(gradient.flatten(), torch.tensor(expected, dtype=torch.float64))
