"""An algorithm is a set of parts with arguments; what is given goes over it key by key, and contradictions are told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from services.config.algorithms.parts import PARTS, POLICY_LOSSES, Kind, known
from services.config.algorithms.types import ALGORITHM_TYPES
from services.config.availability import unavailable
from services.config.checks.algorithm import ALGORITHM_CHECKS, CENTRED
from services.config.derive import resolved
from services.config.load import Loaded
from services.config.tree import RunConfig
from services.trainer.algorithms.advantages import GROUP, GroupAdvantage, advantage

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

TAUGHT = (
    "buffer.explorer_input.default_workflow_type=on_policy_distill_workflow",
    "explorer.auxiliary_models=[{model_path: teacher}]",
)


def _algorithm(**algorithm: Any) -> Any:
    return resolved(RunConfig.model_validate({"algorithm": algorithm})).algorithm


@pytest.mark.parametrize(
    ("name", "repeat_times", "parts", "loss_agg_mode"),
    [
        ("sft", 1, ("none", "sft", "none", "none", "default"), "token-mean"),
        ("cpt", 1, ("none", "sft", "none", "none", "default"), "token-mean"),
        ("ppo", 1, ("ppo", "ppo", "k2", "default", "default"), "token-mean"),
        ("grpo", 2, ("grpo", "ppo", "k2", "default", "default"), "token-mean"),
        ("grpo_verl", 2, ("grpo_verl", "ppo", "k2", "default", "default"), "token-mean"),
        ("dapo", 16, ("grpo", "ppo", "none", "default", "default"), "token-mean"),
        ("reinforceplusplus", 2, ("reinforceplusplus", "ppo", "k2", "default", "default"), "token-mean"),
        ("rloo", 2, ("rloo", "ppo", "k2", "default", "default"), "token-mean"),
        ("remax", 2, ("remax", "ppo", "k2", "default", "default"), "token-mean"),
        ("opmd", 2, ("opmd", "opmd", "k2", "default", "default"), "token-mean"),
        ("pairwise_opmd", 2, ("opmd", "pairwise_opmd", "k2", "default", "default"), "token-mean"),
        ("asymre", 2, ("asymre", "opmd", "none", "none", "default"), "token-mean"),
        ("dpo", 2, ("none", "dpo", "k2", "default", "default"), "token-mean"),
        ("topr", 2, ("reinforce", "topr", "k2", "default", "default"), "token-mean"),
        ("cispo", 2, ("grpo", "cispo", "k2", "default", "default"), "token-mean"),
        ("gspo", 2, ("grpo", "gspo", "k2", "default", "default"), "seq-mean-token-mean"),
        ("sapo", 2, ("grpo", "sapo", "k2", "default", "default"), "token-mean"),
        ("mix", 8, ("grpo", "mix", "k2", "mix", "mix"), "token-mean"),
        ("mix_chord", 8, ("grpo", "mix_chord", "k2", "mix", "mix"), "token-mean"),
        ("raft", 1, ("none", "sft", "none", "none", "default"), "token-mean"),
        ("sppo", 2, ("opmd", "sppo", "none", "none", "default"), "token-mean"),
        ("rec", 2, ("rec", "rec", "k2", "default", "default"), "token-mean"),
        ("multi_step_grpo", 8, ("step_wise_grpo", "ppo", "k2", "default", "default"), "token-mean"),
        ("gigpo", 8, ("gigpo", "ppo", "k2", "default", "default"), "token-mean"),
        ("on_policy_distill", 8, ("on_policy_distill", "ppo", "none", "none", "default"), "token-mean"),
        ("jsd", 8, ("jsd", "ppo", "none", "none", "default"), "token-mean"),
        ("decoupled_ppo", 8, ("grpo", "decoupled_ppo", "none", "none", "default"), "token-mean"),
        ("tis", 8, ("grpo", "tis", "none", "none", "default"), "token-mean"),
        ("icepop", 8, ("grpo", "icepop", "none", "none", "default"), "token-mean"),
        ("geo_mask", 8, ("grpo", "geo_mask", "none", "none", "default"), "token-mean"),
        ("dppo_tv", 8, ("grpo", "dppo_tv", "none", "none", "default"), "token-mean"),
    ],
)
def test_an_algorithm_is_its_parts(name: str, repeat_times: int, parts: tuple[str, ...], loss_agg_mode: str) -> None:
    found = _algorithm(algorithm_type=name)
    assert found.repeat_times == repeat_times
    assert (
        found.advantage_fn,
        found.policy_loss_fn,
        found.kl_loss_fn,
        found.entropy_loss_fn,
        found.sample_strategy,
    ) == parts
    assert (found.kl_penalty_fn, found.loss_agg_mode) == ("none", loss_agg_mode)
    assert ALGORITHM_TYPES[name].uses_critic == (name == "ppo")


def test_every_algorithm_is_in_the_table_above() -> None:
    marks = test_an_algorithm_is_its_parts.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == ALGORITHM_TYPES.keys()


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("name", ALGORITHM_TYPES)
def test_an_algorithms_arguments_are_whole(name: str, kind: Kind) -> None:
    found = _algorithm(algorithm_type=name)
    part = known(kind, getattr(found, kind))
    of_type = ALGORITHM_TYPES[name].args.get(kind, {})
    assert getattr(found, f"{kind}_args") == part.defaults() | dict(of_type)


@pytest.mark.parametrize("name", ALGORITHM_TYPES)
def test_an_algorithm_contradicts_itself_nowhere(name: str) -> None:
    config = resolved(RunConfig.model_validate({"algorithm": {"algorithm_type": name}}))
    assert [problem for check in ALGORITHM_CHECKS for problem in check(config)] == []
    assert [line for line in unavailable(config) if "algorithm." in line] == []


def test_one_argument_stands_beside_the_defaults(loaded: Load) -> None:
    result = loaded("algorithm.algorithm_type=rec", "algorithm.policy_loss_fn_args={clip_mode: ring}")
    args = result.config.algorithm.policy_loss_fn_args
    assert args is not None
    assert (args["clip_mode"], args["epsilon_low_prime"], args["epsilon_high_prime"]) == ("ring", 0.6, 2.0)
    assert result.origins["algorithm.policy_loss_fn_args.clip_mode"] == "override"
    assert result.origins["algorithm.policy_loss_fn_args.temp"] == "derived: default of rec"


def test_what_an_algorithm_sets_for_its_part_goes_when_another_part_is_chosen() -> None:
    assert _algorithm(algorithm_type="dppo_tv").advantage_fn_args["std_normalize"] is False
    given = {"epsilon": 0.5}
    kept = _algorithm(algorithm_type="dppo_tv", advantage_fn_args=given).advantage_fn_args
    assert (kept["std_normalize"], kept["epsilon"]) == (False, 0.5)
    assert _algorithm(algorithm_type="dppo_tv", advantage_fn="opmd").advantage_fn_args == {
        "opmd_baseline": "mean",
        "tau": 1.0,
    }


def test_a_part_of_the_users_choice_brings_its_own_aggregation() -> None:
    assert _algorithm(algorithm_type="grpo", policy_loss_fn="gspo").loss_agg_mode == "seq-mean-token-mean"
    assert _algorithm(algorithm_type="gspo", policy_loss_fn="ppo").loss_agg_mode == "token-mean"
    by_sequence = _algorithm(algorithm_type="rec", policy_loss_fn_args={"clip_mode": "gspo-one-side"})
    assert by_sequence.loss_agg_mode == "seq-mean-token-mean"


@pytest.mark.parametrize(
    "given",
    [
        {"loss_agg_mode": "seq-mean-token-sum"},
        {"policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-sum"}},
        {"loss_agg_mode": "seq-mean-token-sum", "policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-sum"}},
    ],
)
def test_an_aggregation_may_be_given_in_either_place(given: dict[str, Any]) -> None:
    found = _algorithm(algorithm_type="gspo", **given)
    assert (found.loss_agg_mode, found.policy_loss_fn_args["loss_agg_mode"]) == ("seq-mean-token-sum",) * 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.policy_loss_fn=pppo"],
            f"algorithm.policy_loss_fn='pppo' is not known: did you mean ppo? use one of {', '.join(POLICY_LOSSES)}",
        ),
        (
            ["algorithm.kl_loss_fn=low_var"],
            "algorithm.kl_loss_fn='low_var' is not known: did you mean low_var_kl? "
            "use one of none, k1, k2, k3, low_var_kl, abs, corrected_k3",
        ),
        (
            ["algorithm.policy_loss_fn_args={clip_rang: 0.1}"],
            "algorithm.policy_loss_fn_args.clip_rang is no argument of ppo: did you mean clip_range? use one of "
            "loss_agg_mode, clip_range, clip_range_low, clip_range_high, clip_ratio_c, enable_sequence_masking, "
            "delta_sequence_masking, fallback_to_policy_gradient",
        ),
        (
            ["algorithm.policy_loss_fn_args={clip_range_low: -0.1}"],
            "algorithm.policy_loss_fn_args.clip_range_low=-0.1 is refused: input should be greater than or equal to 0",
        ),
        (
            ["algorithm.kl_penalty_fn=k2", "algorithm.kl_penalty_fn_args={adaptive: true}"],
            "algorithm.kl_penalty_fn_args: adaptive holds the KL near a target: give target_kl and horizon",
        ),
        (
            ["algorithm.loss_agg_mode=mean"],
            "algorithm.policy_loss_fn_args.loss_agg_mode='mean' is refused: input should be 'token-mean', "
            "'seq-mean-token-sum', 'seq-mean-token-mean' or 'seq-mean-token-sum-norm'",
        ),
        (
            ["algorithm.loss_agg_mode=token-mean", "algorithm.policy_loss_fn_args={loss_agg_mode: seq-mean-token-sum}"],
            "algorithm.loss_agg_mode=token-mean and algorithm.policy_loss_fn_args.loss_agg_mode=seq-mean-token-sum "
            "contradict each other: keep one of them",
        ),
        (
            ["algorithm.algorithm_type=ppo", "algorithm.advantage_fn=rloo", "algorithm.repeat_times=1"],
            "algorithm.repeat_times=1 leaves rloo nothing to compare: its advantage of an answer is relative to the "
            "other answers to the same task: use 2 or more (8 is usual)",
        ),
        (
            ["algorithm.policy_loss_fn=dpo"],
            "algorithm.repeat_times=8 with policy_loss_fn=dpo, which learns from pairs: use 2, the first chosen and "
            "the second rejected",
        ),
        (
            ["algorithm.advantage_fn=ppo"],
            "algorithm.advantage_fn=ppo reads a critic's values, and algorithm_type=grpo has no critic: use "
            "algorithm_type=ppo",
        ),
        (
            ["algorithm.policy_loss_fn=mix_chord"],
            "algorithm.policy_loss_fn=mix_chord learns from expert rows, and sample_strategy=default brings none: use "
            "mix",
        ),
        (
            ["algorithm.advantage_fn=none"],
            "algorithm.policy_loss_fn=ppo learns from advantages, and advantage_fn=none gives none: use grpo, or "
            "another",
        ),
        (
            [*TAUGHT, "algorithm.algorithm_type=jsd", "algorithm.kl_penalty_fn=k1"],
            "algorithm.kl_penalty_fn=k1 lowers rewards, which advantage_fn=jsd does not read: use kl_loss_fn=k1",
        ),
        (
            ["algorithm.policy_loss_fn=pairwise_opmd", "algorithm.advantage_fn=reinforceplusplus"],
            "algorithm.policy_loss_fn=pairwise_opmd needs advantages that add up to 0 in a group, and those of "
            "advantage_fn=reinforceplusplus do not: use opmd, grpo, rloo or rec",
        ),
        (
            ["algorithm.algorithm_type=pairwise_opmd", "algorithm.advantage_fn=asymre"],
            "algorithm.policy_loss_fn=pairwise_opmd needs advantages that add up to 0 in a group, and those of "
            "advantage_fn=asymre do not with baseline_shift=-0.1: use algorithm.advantage_fn_args.baseline_shift=0",
        ),
        (
            ["algorithm.algorithm_type=pairwise_opmd", "algorithm.advantage_fn_args={opmd_baseline: logavgexp}"],
            "algorithm.policy_loss_fn=pairwise_opmd needs advantages that add up to 0 in a group, and those of "
            "advantage_fn=opmd do not with opmd_baseline=logavgexp: use "
            "algorithm.advantage_fn_args.opmd_baseline=mean",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused_with_the_reason(
    refused: Refuse, overrides: list[str], message: str
) -> None:
    assert [problem.partition("  (")[0] for problem in refused(*overrides)] == [message]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.algorithm_type=raft", "algorithm.repeat_times=1"],
        ["algorithm.advantage_fn=reinforce", "algorithm.repeat_times=1"],
        ["algorithm.policy_loss_fn_args={clip_range_low: 0.1, clip_range_high: 0.3}"],
        ["algorithm.kl_loss_fn_args={kl_coef: 0.01, adaptive: true, target_kl: 0.1, horizon: 10000}"],
        ["algorithm.kl_penalty_fn=k2"],
        ["algorithm.policy_loss_fn=dpo", "algorithm.repeat_times=2", "algorithm.advantage_fn=none"],
        ["algorithm.policy_loss_fn_args=null", "algorithm.entropy_loss_fn_args={entropy_coef: 0}"],
        ["algorithm.algorithm_type=ppo", "algorithm.advantage_fn=grpo"],
        ["algorithm.algorithm_type=pairwise_opmd"],
        ["algorithm.policy_loss_fn=pairwise_opmd"],
        ["algorithm.policy_loss_fn=pairwise_opmd", "algorithm.advantage_fn=rec"],
        [
            "algorithm.algorithm_type=pairwise_opmd",
            "algorithm.advantage_fn=asymre",
            "algorithm.advantage_fn_args={baseline_shift: 0}",
        ],
        ["algorithm.policy_loss_fn=opmd", "algorithm.advantage_fn=reinforceplusplus"],
    ],
)
def test_parts_that_go_together_are_accepted(loaded: Load, overrides: list[str]) -> None:
    assert loaded(*overrides).config.algorithm.policy_loss_fn is not None


@pytest.mark.parametrize("name", GROUP)
def test_the_advantages_that_are_taken_for_centred_add_up_to_0_in_a_group(name: str) -> None:
    rewards_P_G = torch.tensor([[0.0, 1.0, 0.3, 2.0, torch.nan], [1.0, 0.1, 0.0, 0.0, 0.2], [1.0, 1.0, 1.0, 1.0, 1.0]])

    def sums(**given: Any) -> torch.Tensor:
        found = advantage(name, **given)
        assert isinstance(found, GroupAdvantage)
        return found(rewards_P_G).nansum(-1)

    if name not in CENTRED:
        assert name == "none" or (sums().abs() > 0.1).any()
        return
    assert torch.allclose(sums(**CENTRED[name]), torch.zeros(3), atol=1e-5)
    others: dict[str, dict[str, Any]] = {
        "opmd_baseline": {"opmd_baseline": "logavgexp"},
        "baseline_shift": {"baseline_shift": 0.2},
    }
    assert all((sums(**others[key]).abs() > 0.01).any() for key in CENTRED[name])
    if name == "rec":
        assert torch.allclose(sums(drop="balance", std_normalize=True), torch.zeros(3), atol=1e-5)
