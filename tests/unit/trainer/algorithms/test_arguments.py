"""Names and arguments: one table says what there is and with which defaults, and the functions agree with it."""

from dataclasses import replace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from services.config.algorithms.parts import ADVANTAGES, ENTROPY_LOSSES, KL_FNS, POLICY_LOSSES
from services.trainer.algorithms import (
    TokenInputs,
    Totals,
    adapted_kl_coef,
    advantage,
    entropy_mask,
    kl,
    policy_loss,
)
from services.trainer.algorithms.advantages import EPISODES, GROUP, TOKENS
from services.trainer.algorithms.divergence import ESTIMATES
from services.trainer.algorithms.losses import LOSSES


def test_every_part_of_the_table_has_its_function() -> None:
    assert LOSSES.keys() == POLICY_LOSSES.keys()
    assert ESTIMATES.keys() == KL_FNS.keys()
    assert GROUP.keys() | EPISODES.keys() | TOKENS.keys() == ADVANTAGES.keys()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_policy_loss_takes_the_arguments_of_the_table(name: str) -> None:
    assert get_type_hints(LOSSES[name])["arguments"] is POLICY_LOSSES[name].arguments


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_takes_the_arguments_of_the_table(name: str) -> None:
    functions: dict[str, Any] = {**GROUP, **EPISODES, **TOKENS}
    assert get_type_hints(functions[name])["arguments"] is ADVANTAGES[name].arguments


def test_one_argument_leaves_the_other_defaults_in_place() -> None:
    """Trinity-RFT's own numbers; in the reference one given argument loses them."""
    assert policy_loss("rec", clip_mode="ring").arguments.complete() | {"clip_mode": "none"} == {
        "loss_agg_mode": "token-mean",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "epsilon_low_prime": 0.6,
        "epsilon_high_prime": 2.0,
        "clip_mode": "none",
        "weight": "none",
        "regularizer": "none",
        "regularizer_coef": 0.0,
        "temp": 1.0,
    }
    assert policy_loss("ppo", clip_ratio_c=5.0).arguments.complete()["clip_range"] == 0.2
    assert advantage("clipv", max_frac=0.5).arguments.complete()["mu"] == 8.5


@pytest.mark.parametrize(
    ("args", "sides"),
    [
        ({}, (3e-4, 4e-4)),
        ({"clip_range": 0.1}, (0.1, 0.1)),
        ({"clip_range": 0.1, "clip_range_high": 0.3}, (0.1, 0.3)),
        ({"clip_range_low": 0.2}, (0.2, 4e-4)),
    ],
)
def test_a_clip_range_stands_for_both_sides(args: dict[str, float], sides: tuple[float, float]) -> None:
    arguments: Any = policy_loss("gspo", **args).arguments
    assert (arguments.low, arguments.high) == sides


@pytest.mark.parametrize("choose", [policy_loss, kl, advantage])
def test_an_unknown_name_is_told_the_right_ones(choose: Any) -> None:
    with pytest.raises(ValueError, match=r"_fn='pppo' is not known: .*use one of \w+, \w+"):
        choose("pppo")


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "sppo",
            {"epsilonn": 1.0},
            "policy_loss_fn_args.epsilonn is no argument of sppo: did you mean epsilon? "
            "use one of loss_agg_mode, epsilon",
        ),
        (
            "ppo",
            {"clip_range": -0.1},
            "policy_loss_fn_args.clip_range=-0.1 is refused: input should be greater than or equal to 0",
        ),
        (
            "ppo",
            {"clip_range": None},
            "policy_loss_fn_args: give clip_range, or both clip_range_low and clip_range_high",
        ),
        (
            "sapo",
            {"tau_pos": 2.0},
            "policy_loss_fn_args: tau_neg=1.05 is below tau_pos=2.0: use 2.0 or more",
        ),
        (
            "icepop",
            {"lower": 6.0},
            "policy_loss_fn_args: lower=6.0 is not below upper=5.0: nothing would be learned from",
        ),
        (
            "opmd",
            {"loss_agg_mode": "mean"},
            "policy_loss_fn_args.loss_agg_mode='mean' is refused: input should be 'token-mean', 'seq-mean-token-sum', "
            "'seq-mean-token-mean' or 'seq-mean-token-sum-norm'",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="policy_loss_fn_args") as caught:
        policy_loss(name, **args)
    assert str(caught.value) == message


def test_all_wrong_arguments_are_told_together() -> None:
    with pytest.raises(ValueError, match=r"alpha is no argument of rloo: it takes none; .*beta is no argument"):
        advantage("rloo", alpha=1, beta=2)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_policy_loss_says_what_it_needs_and_misses_it(name: str) -> None:
    """Nothing but what the table says is read; each tensor that is read is asked for by name."""
    loss_fn, reads = policy_loss(name), POLICY_LOSSES[name].reads
    given = {
        key: torch.full((2, 3), 0.5)
        for key in ("old_logprob", "advantages", "ref_logprob", "proximal_logprob")
        if key in reads
    }
    given |= {"expert_mask": torch.tensor([True, False])} if "expert_mask" in reads else {}
    assert loss_fn.needs == reads - {"old_logprob", "advantages"}
    logprob, mask = torch.zeros(2, 3), torch.ones(2, 3)

    def called(tensors: dict[str, Any]) -> torch.Tensor:
        rest = dict(tensors)
        return loss_fn(logprob, rest.pop("old_logprob", None), mask, rest.pop("advantages", None), **rest)[0]

    assert torch.isfinite(called(given))
    for key in given.keys() - {"proximal_logprob"}:
        with pytest.raises(ValueError, match=f"the policy loss {name} reads {key}: pass it"):
            called({other: value for other, value in given.items() if other != key})


def test_without_a_proximal_policy_the_policy_itself_stands_in(standard) -> None:
    """The first step on a batch: the ratio is 1, and the weight is all of the ratio to the sampler."""
    given = (standard.logprob, standard.old, standard.mask, standard.advantages)
    alone, _ = policy_loss("tis", upper=100.0)(*given)
    named, _ = policy_loss("tis", upper=100.0)(*given, proximal_logprob=standard.logprob)
    plain, _ = policy_loss("importance_sampling")(*given)
    assert float(alone) == float(named) == pytest.approx(float(plain), abs=1e-6)


def test_only_dpo_is_paired_and_an_odd_row_is_refused() -> None:
    assert [name for name in POLICY_LOSSES if policy_loss(name).is_paired] == ["dpo"]
    ones = torch.ones(3, 2)
    with pytest.raises(ValueError, match="dpo got 3 rows: give pairs"):
        policy_loss("dpo")(ones, None, ones, None, ref_logprob=ones)


def test_gspo_is_averaged_over_sequences_unless_told_otherwise(standard) -> None:
    given = (standard.logprob, standard.old, standard.mask, standard.advantages)
    assert float(policy_loss("gspo")(*given)[0]) == pytest.approx(0.2723511, abs=1e-6)
    assert float(policy_loss("gspo", loss_agg_mode="token-mean")(*given)[0]) == pytest.approx(0.2790028, abs=1e-6)


def test_the_schedule_of_mix_chord_needs_a_step(standard) -> None:
    given = (standard.logprob, standard.old, standard.mask, standard.advantages)
    loss_fn = policy_loss("mix_chord", mu_warmup_steps=2, mu_decay_steps=2, mu_peak=0.8, mu_valley=0.2)
    mus = [loss_fn(*given, expert_mask=standard.expert, step=step)[1]["mu"] for step in range(6)]
    assert mus == pytest.approx([0.0, 0.4, 0.8, 0.5, 0.2, 0.2])
    with pytest.raises(ValueError, match="mix_chord follows a schedule of 4 steps: pass step"):
        loss_fn(*given, expert_mask=standard.expert)


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
@pytest.mark.parametrize("expert", [True, False])
def test_a_micro_batch_of_one_kind_of_rows_is_no_special_case(name: str, expert: bool, standard) -> None:
    mask = standard.mask
    totals = Totals(tokens=100, sequences=10, length=20, expert_tokens=40, expert_sequences=4)
    loss, metrics = policy_loss(name)(
        standard.logprob,
        standard.old,
        mask,
        standard.advantages,
        totals=totals,
        expert_mask=torch.full((5,), expert),
        step=1,
    )
    other = "usual" if expert else "expert"
    assert all(value == 0 for key, value in metrics.items() if key.startswith(f"{other}/"))
    assert float(loss) != 0


def test_the_totals_of_usual_and_expert_rows_make_the_whole(standard) -> None:
    totals = Totals.of(standard.mask, standard.expert)
    assert (totals.usual.tokens + totals.expert.tokens, totals.usual.sequences + totals.expert.sequences) == (48, 5)
    assert (totals.expert.sequences, totals.length, totals.expert.length) == (3, 20, 20)


@pytest.mark.parametrize(
    ("current", "expected"),
    [(0.1, 0.5), (1.0, 0.5 * (1 + 0.2 * 64 / 1000)), (0.0, 0.5 * (1 - 0.2 * 64 / 1000)), (0.11, 0.5 * 1.0064)],
)
def test_an_adaptive_coefficient_follows_the_kl(current: float, expected: float) -> None:
    assert adapted_kl_coef(0.5, current, target_kl=0.1, horizon=1000, batch_size=64) == pytest.approx(expected)


def test_an_adaptive_kl_has_a_target() -> None:
    with pytest.raises(ValueError, match="give target_kl and horizon"):
        kl("k2", adaptive=True, target_kl=0.1)
    assert kl("k2", adaptive=True, target_kl=0.1, horizon=100).arguments.kl_coef == 0.001


def test_an_entropy_term_counts_the_rows_of_its_name() -> None:
    mask, expert = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([False, True])
    found = {name: entropy_mask(name, mask, expert).tolist() for name in ENTROPY_LOSSES}
    assert found == {
        "default": [[1.0, 0.0], [1.0, 1.0]],
        "mix": [[1.0, 0.0], [0.0, 0.0]],
        "none": [[0.0, 0.0], [0.0, 0.0]],
    }
    with pytest.raises(ValueError, match="pass expert_mask"):
        entropy_mask("mix", mask, None)
    with pytest.raises(ValueError, match="entropy_loss_fn='mixed' is not known: did you mean mix"):
        entropy_mask("mixed", mask, expert)


def test_tensors_come_by_position_by_name_or_by_verls_names(standard) -> None:
    """Trinity-RFT's losses take either set of names, a `backend`, and the mask as it comes."""
    loss_fn = policy_loss("mix", backend="verl", clip_range=0.2)
    given = (standard.logprob, standard.old, standard.mask, standard.advantages)
    extra = {"expert_mask": standard.expert.long(), "anything": None}
    by_position = loss_fn(*given, **extra)
    by_name = dict(zip(("logprob", "old_logprob", "action_mask", "advantages"), given, strict=True))
    by_verl = dict(zip(("log_prob", "old_log_probs", "response_mask", "advantages"), given, strict=True))
    assert loss_fn(**by_name, **extra) == loss_fn(**by_verl, **extra) == by_position
    assert policy_loss("mix")(*given[:2], standard.mask.float(), given[3], **extra) == by_position
    with pytest.raises(ValueError, match="the policy loss mix reads action_mask, advantages, expert_mask: pass it"):
        loss_fn(*given[:2])


def test_rewards_come_as_lists_arrays_or_integers() -> None:
    rewards = [[0, 0, 1, 1], [2, 0, 0, 0]]
    grpo = advantage("grpo")
    expected = grpo(torch.tensor(rewards, dtype=torch.float32))
    assert grpo(rewards).tolist() == grpo(torch.tensor(rewards)).tolist() == expected.tolist()
    torch.testing.assert_close(grpo(np.array(rewards, np.float64)), expected.double(), rtol=1e-6, atol=1e-6)
    assert grpo(rewards[0]).tolist() == expected[0].tolist()
    with pytest.raises(ValueError, match=r"grpo got rewards .* of shape \(1, 1, 2\): give P x G, or G"):
        grpo([[[0.0, 1.0]]])


def test_a_mask_of_bools_is_as_good_as_one_of_numbers(standard) -> None:
    inputs = TokenInputs(standard.advantages, standard.mask, torch.tensor([0, 0, 1, 1, 1]), values=standard.ref)
    floats = replace(inputs, action_mask=standard.mask.float())
    for name in ("ppo", "reinforceplusplus"):
        assert advantage(name)(inputs).advantages.equal(advantage(name)(floats).advantages)


def test_the_name_of_an_algorithm_is_answered_with_that_of_its_part() -> None:
    with pytest.raises(
        ValueError, match="advantage_fn='dapo' is not known: it is an algorithm_type, whose advantage_fn"
    ):
        advantage("dapo")
    with pytest.raises(ValueError, match=r"policy_loss_fn='grpo' .* whose policy_loss_fn is ppo; did you mean gspo\?"):
        policy_loss("grpo")
