"""The losses as veRL's engine calls them: veRL's own numbers for PPO, and the same sum however a batch is parted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, compute_value_loss, kl_penalty
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig

from services.config.rollout_correction import RolloutCorrection
from services.trainer.backends.packing import Layout, pack
from services.trainer.backends.port import Sequence
from services.trainer.backends.verl_loss import ActorLoss, CriticLoss

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
PROMPT = 3
CORRECTION = RolloutCorrection(
    rollout_is="sequence", rollout_rs="token_k2", rollout_rs_threshold=0.3, bypass_mode=True, loss_type="reinforce"
)


@pytest.fixture
def rows() -> list[Sequence]:
    """Eight responses of 2 to 9 tokens; the last two are an expert's."""
    chance = np.random.default_rng(7)
    made = []
    for place, length in enumerate(chance.integers(2, 10, 8)):
        mask = chance.integers(0, 2, length).astype(np.uint8)
        mask[0] = 1
        old, advantage = -2 * chance.random(length, np.float32), np.float32(chance.normal())
        made.append(
            Sequence(
                tokens=chance.integers(0, 50, PROMPT + length).astype(np.int32),
                prompt_length=PROMPT,
                action_mask=mask,
                old_logprobs=old,
                advantages=np.full(length, advantage, np.float32),
                group=place // 2,
                is_expert=place >= 6,
                reference_logprobs=old + chance.normal(0, 0.3, length).astype(np.float32),
                proximal_logprobs=old + chance.normal(0, 0.3, length).astype(np.float32),
                values=chance.normal(size=length).astype(np.float32),
                returns=chance.normal(size=length).astype(np.float32),
            )
        )
    return made


def _output(rows: list[Sequence], seed: int = 3) -> dict[int, torch.Tensor]:
    """What a model says of each token of each row, prompt included, by the row's first tokens."""
    chance = torch.Generator().manual_seed(seed)
    return {
        row.tokens.tobytes(): -2 * torch.rand(len(row.tokens), generator=chance, dtype=torch.float64) for row in rows
    }


def _called(loss: Any, rows: list[Sequence], whole: list[Sequence], said: Any, ranks: int) -> tuple[Any, Any, Any]:
    """The loss of a micro-batch `rows` of the batch `whole`, with the gradient at each row's tokens, by its bytes."""
    totals = pack(whole, Layout(1, 10_000), {"step": 1, "kl_coef": 0.25})
    data = pack(rows, Layout(1, 10_000), {"step": 1, "kl_coef": 0.25, "dp_size": ranks})
    for name in ("tokens", "sequences", "length", "expert_tokens", "expert_sequences"):
        tensordict_utils.assign_non_tensor(data, **{f"totals_{name}": totals[f"totals_{name}"]})
    leaves = [said[row.tokens.tobytes()].clone().requires_grad_() for row in rows]
    nested = torch.nested.as_nested_tensor(leaves, layout=torch.jagged)
    names = ("log_probs", "entropy", "values")
    value, metrics = loss(model_output=dict.fromkeys(names, nested), data=data)
    value.backward()
    gradients = {row.tokens.tobytes(): leaf.grad for row, leaf in zip(rows, leaves, strict=True)}
    return value.detach(), metrics, gradients


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "entropy"),
    [
        ("ppo", "default"),
        ("gspo", "default"),
        ("mix", "mix"),
        ("tis", "default"),
        ("dpo", "default"),
        ("sft", "none"),
        ("reinforce", "default"),
    ],
)
def test_the_parts_of_a_batch_add_up_to_the_whole(rows: list[Sequence], mode: str, name: str, entropy: str) -> None:
    correction = CORRECTION if name == "reinforce" else None
    loss = ActorLoss(name, {"loss_agg_mode": mode}, "k2", entropy, 0.1, mode, True, correction)
    said = _output(rows)
    whole, metrics, gradients = _called(loss, rows, rows, said, ranks=1)
    silent = [replace(row, group=-1, action_mask=row.action_mask * 0) for row in rows[:2]]
    parts = [_called(loss, rows[at : at + 2], rows, said, ranks=2) for at in range(0, 8, 2)]
    parts.append(_called(loss, silent, rows, said, ranks=2))
    assert float(sum(part[0] for part in parts)) / 2 == pytest.approx(float(whole), rel=1e-6)
    for key, metric in metrics.items():
        shares = [part[1][key].aggregate() for part in parts]
        together = {"sum": sum(shares) / 2, "max": max(shares), "min": min(shares)}[metric.aggregation.value]
        assert together == pytest.approx(metric.aggregate(), rel=1e-5, abs=1e-9), key
    for part in parts[:-1]:
        for key, gradient in part[2].items():
            assert torch.allclose(gradient / 2, gradients[key], rtol=1e-6, atol=1e-12)
    assert all((gradient == 0).all() for gradient in parts[-1][2].values())


@pytest.mark.parametrize("mode", MODES)
def test_ppo_with_entropy_and_kl_is_what_verl_computes(rows: list[Sequence], mode: str) -> None:
    own = rows[:6]
    said = _output(own)
    arguments = {"clip_range_low": 0.2, "clip_range_high": 0.28, "loss_agg_mode": mode}
    value, metrics, _ = _called(ActorLoss("ppo", arguments, "k3", "default", 0.1, mode), own, own, said, ranks=1)
    T = max(row.response_length for row in own)

    def of(arrays: list[Any]) -> torch.Tensor:
        padded = [torch.nn.functional.pad(torch.as_tensor(each), (0, T - len(each))) for each in arrays]
        return torch.stack(padded).double()

    mask = of([row.action_mask for row in own]).bool()
    logprob = of([said[row.tokens.tobytes()][PROMPT - 1 : -1] for row in own])
    old, reference = of([row.old_logprobs for row in own]), of([row.reference_logprobs for row in own])
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, clip_ratio_low=0.2, clip_ratio_high=0.28, ppo_micro_batch_size_per_gpu=1
    )
    config.global_batch_info.update(batch_num_tokens=int(mask.sum()), global_batch_size=6, dp_size=1)
    pg, found = compute_policy_loss_vanilla(
        old, logprob, of([row.advantages for row in own]), mask, mode, config=config, rollout_is_weights=None
    )
    sizes = {"batch_num_tokens": int(mask.sum()), "global_batch_size": 6}
    entropy = agg_loss(logprob, mask, mode, **sizes)
    kl = agg_loss(kl_penalty(logprob, reference, "low_var_kl"), mask, mode, **sizes)
    if mode == "seq-mean-token-sum-norm":  # veRL divides by the number of sequences too; Dr. GRPO does not
        pg, entropy, kl = 6 * pg, 6 * entropy, 6 * kl
    assert metrics["actor/pg_loss"].aggregate() == pytest.approx(float(pg), rel=1e-6)
    assert metrics["actor/entropy_loss"].aggregate() == pytest.approx(float(entropy), rel=1e-6)
    assert metrics["actor/kl_loss"].aggregate() == pytest.approx(float(kl), rel=1e-6)
    assert float(value) == pytest.approx(float(pg - 0.1 * entropy + 0.25 * kl), rel=1e-6)
    for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"):
        assert metrics[f"actor/{name}"].aggregate() == pytest.approx(found[f"actor/{name}"], rel=1e-6, abs=1e-9)


def test_the_value_loss_is_what_verl_computes(rows: list[Sequence]) -> None:
    own, T = rows[:6], max(row.response_length for row in rows[:6])
    said = _output(own)
    value, metrics, _ = _called(CriticLoss(0.5), own, own, said, ranks=1)

    def of(arrays: list[Any]) -> torch.Tensor:
        padded = [torch.nn.functional.pad(torch.as_tensor(each), (0, T - len(each))) for each in arrays]
        return torch.stack(padded).double()

    predicted = of([said[row.tokens.tobytes()][PROMPT - 1 : -1] for row in own])
    returns, values = of([row.returns for row in own]), of([row.values for row in own])
    mask = of([row.action_mask for row in own])
    expected, clipped = compute_value_loss(predicted, returns, values, mask, 0.5)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert metrics["critic/vf_clipfrac"].aggregate() == pytest.approx(float(clipped), rel=1e-6)


def test_weights_that_a_batch_brings_multiply_the_loss_of_each_token(rows: list[Sequence]) -> None:
    """REINFORCE by hand: the weighted tokens over all of them, and a KL loss that is not weighed."""
    weighed = [replace(row, weights=np.linspace(0, 2, row.response_length, dtype=np.float32)) for row in rows]
    said = _output(rows)
    loss = ActorLoss("reinforce", {}, "k2")
    whole, metrics, _ = _called(loss, weighed, weighed, said, ranks=1)
    logprobs = [said[row.tokens.tobytes()][PROMPT - 1 : -1].numpy() for row in rows]
    terms = [
        -row.weights * row.advantages * logprob * row.action_mask
        for row, logprob in zip(weighed, logprobs, strict=True)
        if row.weights is not None
    ]
    expected = sum(each.sum() for each in terms) / sum(row.action_mask.sum() for row in rows)
    assert metrics["actor/pg_loss"].aggregate() == pytest.approx(expected, rel=1e-6)
    unweighed = _called(loss, rows, rows, said, ranks=1)[1]
    assert metrics["actor/kl_loss"].aggregate() == unweighed["actor/kl_loss"].aggregate()
    assert float(whole) == pytest.approx(expected + 0.25 * metrics["actor/kl_loss"].aggregate(), rel=1e-6)
