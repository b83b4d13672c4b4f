"""Losses, KL terms and advantages against values of the published reference implementation, Trinity-RFT 0.6.0.

`tests/golden/algorithms.json` was made by calling that package's own classes, each with its default arguments and with
others, on the input of `conftest.py`, or one of another seed and shape with a row that has no action (advantages: on
the rewards and episodes that stand beside the values). Where the reference is known to be wrong there is no golden
value: the right one is worked out in the tests beside this file.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.algorithms import Episodes, TokenInputs, advantage, aggregate, kl, policy_loss

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[3] / "golden" / "algorithms.json").read_text(encoding="utf-8")
)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def _named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=f"{index}-{case['name']}") for index, case in enumerate(cases)]


def _advantages(kind: str) -> list[Any]:
    return _named([case for case in GOLDEN["advantages"] if kind in case])


def _close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64), **TOLERANCE
    )


@pytest.mark.parametrize("case", _named(GOLDEN["losses"]))
def test_a_policy_loss_its_gradient_and_its_metrics_are_the_references(case: dict[str, Any], drawn) -> None:
    standard, rows = drawn(**case.get("input", {})), slice(case["rows"])
    logprob = standard.logprob.clone().requires_grad_()
    loss, metrics = policy_loss(case["name"], **case["args"])(
        logprob[rows],
        standard.old[rows],
        standard.mask[rows],
        standard.advantages[rows],
        **standard.extra(rows, case["step"]),
    )
    (gradient,) = torch.autograd.grad(loss, logprob)
    _close(loss.item(), case["loss"])
    _close(gradient.norm(), case["grad_norm"])
    for name, value in case["metrics"].items():
        _close(metrics[name], value)


@pytest.mark.parametrize("case", _named([case for case in GOLDEN["kl"] if "wide" not in case]))
def test_a_kl_term_is_the_references(case: dict[str, Any], drawn) -> None:
    standard = drawn(**case.get("input", {}))
    values = kl(case["name"])(standard.logprob, standard.ref, standard.old if case["with_old"] else None)
    _close(values[0, :4], case["first"])
    _close(values.sum(), case["sum"])
    for mode, value in case["aggregated"].items():
        _close(aggregate(values, standard.mask, mode), value)


@pytest.mark.parametrize("case", _named([case for case in GOLDEN["kl"] if "wide" in case]))
def test_a_kl_term_is_bounded_as_the_references(case: dict[str, Any]) -> None:
    logprob = torch.tensor([[-1.0, -30.0, -3.0, -0.5]])
    ref, old = torch.tensor([[-9.0, -1.0, -0.5, -26.0]]), torch.tensor([[-3.0, -30.5, -3.0, -0.1]])
    _close(kl(case["name"])(logprob, ref, old)[0], case["values"])


@pytest.mark.parametrize("case", _advantages("rewards"))
def test_an_advantage_of_groups_is_the_references(case: dict[str, Any]) -> None:
    _close(advantage(case["name"], **case["args"])(torch.tensor(case["rewards"])), case["advantages"])


@pytest.mark.parametrize("case", _advantages("episodes"))
def test_an_advantage_of_episodes_is_the_references(case: dict[str, Any]) -> None:
    groups, episodes, steps, rewards, states, step_rewards = zip(*case["episodes"], strict=True)
    found = advantage(case["name"], **case["args"])(
        Episodes(
            rewards=torch.tensor(rewards),
            groups=torch.tensor(groups),
            episodes=torch.tensor(episodes),
            steps=torch.tensor(steps),
            states=list(states),
            step_rewards=torch.tensor([math.nan if each is None else each for each in step_rewards]),
        )
    )
    _close(found, case["advantages"])


@pytest.mark.parametrize("case", _advantages("tokens"))
def test_an_advantage_of_tokens_is_the_references(case: dict[str, Any], standard) -> None:
    mask, expected = standard.mask.float(), case["tokens"]
    found = advantage(case["name"], **case["args"])(
        TokenInputs(
            token_rewards=standard.advantages,
            action_mask=mask,
            groups=torch.tensor([0, 0, 1, 1, 1]),
            values=standard.ref,
            old_logprob=standard.old - 1,
            teacher_logprob=standard.logprob - 1,
            entropy=2 * torch.rand(5, 20),  # these three follow in the generator's sequence
            nec=0.2 * torch.rand(5, 20),
            baselines=torch.rand(5),
        )
    )
    _close((found.advantages * mask).sum(-1), expected["advantages_sum"])
    _close(found.advantages[:, :3] * mask[:, :3], torch.tensor(expected["first"]) * mask[:, :3])
    _close(found.returns.sum(-1), expected["returns_sum"])
    assert ["".join(str(int(each)) for each in row) for row in found.action_mask.tolist()] == expected["mask"]
    for name, value in case["metrics"].items():
        _close(found.metrics[name], value)
