"""veRL's rollout correction as a configuration asks for it: what is read, what is derived, and what is refused."""

from collections.abc import Callable

import pytest

from services.config.algorithms.choice import part_of
from services.config.load import Loaded
from services.config.rollout_correction import OPTIONS, Bound, RolloutCorrection

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]
KEY = "algorithm.rollout_correction"


def _set(**given: object) -> str:
    return f"{KEY}={{{', '.join(f'{name}: {value}' for name, value in given.items())}}}"


def test_a_correction_has_the_trainers_own_logprobs_computed(loaded: Load) -> None:
    found = loaded(_set(rollout_is="token"))
    assert found.config.algorithm.bypass_old_logprobs is False
    assert found.origins["algorithm.bypass_old_logprobs"] == "derived: rollout_correction"
    assert loaded().config.algorithm.bypass_old_logprobs is True
    bypassing = loaded(_set(bypass_mode="true", loss_type="reinforce", rollout_is="token")).config
    assert bypassing.algorithm.bypass_old_logprobs is True
    assert part_of(bypassing, "policy_loss_fn") == "reinforce"


def test_the_section_of_verls_own_explanation_is_read_as_it_stands(loaded: Load) -> None:
    given = {
        "rollout_is": "token",
        "rollout_is_threshold": 2.0,
        "rollout_rs": "null",
        "rollout_rs_threshold": "null",
        "rollout_rs_threshold_lower": "null",
        "rollout_token_veto_threshold": "null",
    }
    found = loaded(_set(**given)).config.algorithm.rollout_correction
    assert found == RolloutCorrection(rollout_is="token")


def test_a_number_is_an_upper_bound_and_two_are_both() -> None:
    assert RolloutCorrection().weight_bounds == (None, 2.0)
    assert RolloutCorrection(rollout_is_threshold="3.5").weight_bounds == (None, 3.5)
    assert RolloutCorrection(rollout_is_threshold="0.5_5").weight_bounds == (0.5, 5.0)


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 2}, (Bound("token_k1", 2.0, 0.5),)),
        ({"rollout_rs": "geometric", "rollout_rs_threshold": "0.8_1.25"}, (Bound("seq_mean_k1", 1.25, 0.8),)),
        ({"rollout_rs": "sequence", "rollout_rs_threshold": 4.0}, (Bound("seq_sum_k1", 4.0, 0.25),)),
        (
            {"rollout_rs": "token", "rollout_rs_threshold": 4.0, "rollout_rs_threshold_lower": 0.5},
            (Bound("token_k1", 2.0, 0.25),),
        ),
        (
            {"rollout_rs": "seq_mean_k3, token_k1,seq_mean_k3", "rollout_rs_threshold": "0.01,0.5_2"},
            (Bound("seq_mean_k3", 0.01), Bound("token_k1", 2.0, 0.5)),
        ),
    ],
)
def test_bounds_are_read_as_verl_reads_them(given: dict[str, object], bounds: tuple[Bound, ...]) -> None:
    assert RolloutCorrection.model_validate(given).bounds == bounds


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"rollout_is": "tokens"},
            f"{KEY}.rollout_is=tokens is not one of token, sequence: did you mean token?",
        ),
        (
            {"rollout_iss": "token"},
            f"{KEY}.rollout_iss is not a known key: did you mean {KEY}.rollout_is?",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": -1},
            f'{KEY}.rollout_is_threshold=-1.0 is refused: give a number above 0, or two as in "0.5_2.0"',
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "'3.0_2.0'"},
            f"{KEY}.rollout_is_threshold: the lower bound 3.0 is above the upper one 2.0",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "0.5_nan"},
            f'{KEY}.rollout_is_threshold=0.5_nan is refused: give a number above 0, or two as in "0.5_2.0"',
        ),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5},
            f"{KEY}.rollout_rs_threshold: the lower bound 2.0 is above the upper one 0.5",
        ),
        (
            {"rollout_rs": "seq_mean_k4", "rollout_rs_threshold": 1},
            f"{KEY}.rollout_rs=seq_mean_k4 is not known: did you mean seq_mean_k3? "
            f"use one of {', '.join(OPTIONS)}, token, sequence, geometric",
        ),
        ({"rollout_rs": "token_k1"}, f"{KEY}.rollout_rs=token_k1 has no bound: give rollout_rs_threshold"),
        (
            {"rollout_rs": "'token_k1,token_k2'", "rollout_rs_threshold": "'1,2,3'"},
            f"{KEY}.rollout_rs_threshold=1,2,3 has 3 bounds for 2 options: give one for all, or one each",
        ),
        (
            {"rollout_rs": "token_k3", "rollout_rs_threshold": "'0.5_2.0'"},
            f"{KEY}.rollout_rs_threshold=0.5_2.0 has two bounds, and token_k3 takes an upper one alone",
        ),
        ({"rollout_rs_threshold": 2.0}, f"{KEY}.rollout_rs_threshold=2.0 bounds nothing: set rollout_rs"),
        ({"rollout_is_threshold": 3.0}, f"{KEY}.rollout_is_threshold=3.0 bounds nothing: set rollout_is"),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": 2, "rollout_rs_threshold_lower": 0.4},
            f"{KEY}.rollout_rs_threshold_lower=0.4 is a bound of token, sequence, geometric: "
            'write both bounds in rollout_rs_threshold, as "0.5_2.0"',
        ),
        (
            {"rollout_is_batch_normalize": "true"},
            f"{KEY}.rollout_is_batch_normalize=true has no weights to divide: set rollout_is",
        ),
        (
            {"rollout_is": "token", "rollout_is_batch_normalize": "true", "bypass_mode": "true"},
            f"{KEY}.rollout_is_batch_normalize=true needs the weights of the whole batch before the update, which "
            "bypass_mode does not compute: set bypass_mode=false",
        ),
        (
            {"loss_type": "reinforce"},
            f"{KEY}.loss_type=reinforce is a loss of bypass_mode: set it, or policy_loss_fn=reinforce",
        ),
    ],
)
def test_what_cannot_be_corrected_for_is_refused(refused: Refuse, given: dict[str, object], message: str) -> None:
    assert refused(_set(**given)) == [f"{message}  (override)"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.policy_loss_fn=tis", _set(rollout_is="token")],
            f"{KEY} weighs tokens, and so does policy_loss_fn=tis: use ppo, or leave {KEY} out",
        ),
        (
            ["algorithm.policy_loss_fn=ppo", _set(bypass_mode="true", loss_type="reinforce")],
            f"{KEY}.loss_type=reinforce and algorithm.policy_loss_fn=ppo name two losses: keep one",
        ),
        (
            ["algorithm.bypass_old_logprobs=true", _set(rollout_is="token")],
            f"algorithm.bypass_old_logprobs=true and {KEY}.bypass_mode=false contradict each other: "
            "leave algorithm.bypass_old_logprobs out",
        ),
        (
            ["algorithm.bypass_old_logprobs=false", _set(bypass_mode="true", rollout_is="token")],
            f"algorithm.bypass_old_logprobs=false and {KEY}.bypass_mode=true contradict each other: "
            "leave algorithm.bypass_old_logprobs out",
        ),
        (
            ["algorithm.policy_loss_fn=opmd", _set(bypass_mode="true", rollout_is="token")],
            f"{KEY}.rollout_is=token has no effect with bypass_mode=true and policy_loss_fn=opmd, which has no ratio "
            "to the sampler: set bypass_mode=false",
        ),
        (
            ["algorithm.policy_loss_fn=reinforce", _set(bypass_mode="true", rollout_is="sequence")],
            f"{KEY}.rollout_is=sequence has no effect with bypass_mode=true and policy_loss_fn=reinforce, which has no "
            "ratio to the sampler: set loss_type=reinforce, or bypass_mode=false",
        ),
    ],
)
def test_a_correction_that_contradicts_the_algorithm_is_refused(
    refused: Refuse, overrides: list[str], message: str
) -> None:
    assert refused(*overrides) == [f"{message}  (override)"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.policy_loss_fn=opmd", _set(rollout_is="token")],
        ["algorithm.policy_loss_fn=opmd", _set(bypass_mode="true", rollout_rs="token_k2", rollout_rs_threshold=1)],
        ["algorithm.policy_loss_fn=reinforce", _set(bypass_mode="true", rollout_is="token", loss_type="reinforce")],
        ["algorithm.algorithm_type=cispo", _set(bypass_mode="true", rollout_is="token")],
        [_set(rollout_is="token", rollout_is_threshold=3.0)],
    ],
)
def test_weights_that_reach_the_loss_are_accepted(loaded: Load, overrides: list[str]) -> None:
    assert loaded(*overrides).config.algorithm.rollout_correction is not None
