"""What must hold between the parts of an algorithm, and between them and the rest of the run."""

from collections.abc import Callable, Iterator

from services.config.algorithms.choice import arguments_of, checked_arguments, part_of
from services.config.algorithms.parts import ADVANTAGES, PARTS, POLICY_LOSSES, ArgumentError, known
from services.config.errors import Problem
from services.config.tree import RunConfig

TRAINING_MODES = ("both", "explore", "train", "serve", "colocate")

CENTRED: dict[str, dict[str, object]] = {
    "grpo": {},
    "grpo_verl": {},
    "rloo": {},
    "rec": {},
    "clipb": {},
    "clipv": {},
    "opmd": {"opmd_baseline": "mean"},
    "opmd_verl": {"opmd_baseline": "mean"},
    "asymre": {"baseline_shift": 0},
    "asymre_verl": {"baseline_shift": 0},
    "step_wise_grpo": {"enable_step_norm": True},
}
"""The advantages that add up to 0 over the experiences of a group, with the arguments under which they do."""


def _parts_and_arguments_are_known(config: RunConfig) -> Iterator[Problem]:
    for kind in PARTS:
        key = f"algorithm.{kind}"
        try:
            known(kind, part_of(config, kind))
            checked_arguments(config, kind)
        except ArgumentError as error:
            for argument, sentence in error.faults:
                yield Problem(f"{key}_args.{argument}".rstrip("."), f"algorithm.{sentence}")
        except ValueError as error:
            yield Problem(key, f"algorithm.{error}")


def _aggregation_is_given_once(config: RunConfig) -> Iterator[Problem]:
    mode, key = config.algorithm.loss_agg_mode, "algorithm.policy_loss_fn_args.loss_agg_mode"
    beside = (config.algorithm.policy_loss_fn_args or {}).get("loss_agg_mode", mode)
    if mode is not None and beside not in (None, mode):
        message = f"algorithm.loss_agg_mode={mode} and {key}={beside} contradict each other: keep one of them"
        yield Problem("algorithm.loss_agg_mode", message)


def _groups_have_company(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "advantage_fn")
    part = ADVANTAGES.get(name)
    is_alone = config.repeat_times == 1 and config.mode in TRAINING_MODES and not _learns_from_rows(config)
    if part is None or not part.compares or not is_alone:
        return
    message = (
        f"algorithm.repeat_times=1 leaves {name} nothing to compare: its advantage of an answer is relative to the "
        "other answers to the same task: use 2 or more (8 is usual)"
    )
    yield Problem("algorithm.repeat_times", message)


def _pairs_have_two_sides(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "policy_loss_fn")
    part = POLICY_LOSSES.get(name)
    if part is not None and part.is_paired and config.repeat_times != 2 and not _learns_from_rows(config):
        message = f"algorithm.repeat_times={config.repeat_times} with policy_loss_fn={name}, which learns from pairs"
        yield Problem("algorithm.repeat_times", f"{message}: use 2, the first chosen and the second rejected")


def _a_critic_is_there(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "advantage_fn")
    part = ADVANTAGES.get(name)
    has_one = config.algorithm_type.uses_critic or _learns_from_rows(config)
    if part is not None and "values" in part.reads and not has_one:
        told = f"algorithm.advantage_fn={name} reads a critic's values"
        message = f"{told}, and algorithm_type={config.algorithm.algorithm_type} has no critic: use algorithm_type=ppo"
        yield Problem("algorithm.advantage_fn", message)


def _expert_rows_are_there(config: RunConfig) -> Iterator[Problem]:
    name, strategy = part_of(config, "policy_loss_fn"), part_of(config, "sample_strategy")
    part = POLICY_LOSSES.get(name)
    if part is not None and "expert_mask" in part.reads and strategy != "mix" and not _learns_from_rows(config):
        told = f"algorithm.policy_loss_fn={name} learns from expert rows"
        yield Problem("algorithm.sample_strategy", f"{told}, and sample_strategy={strategy} brings none: use mix")


def _advantages_are_there(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "policy_loss_fn")
    part = POLICY_LOSSES.get(name)
    is_missing = part_of(config, "advantage_fn") == "none" and not _learns_from_rows(config)
    if part is not None and part.learns_from_advantages and is_missing:
        message = f"algorithm.policy_loss_fn={name} learns from advantages, and advantage_fn=none gives none"
        yield Problem("algorithm.advantage_fn", f"{message}: use grpo, or another")


def _pairwise_advantages_are_centred(config: RunConfig) -> Iterator[Problem]:
    name, given = part_of(config, "advantage_fn"), arguments_of(config, "advantage_fn")
    is_pairwise = part_of(config, "policy_loss_fn") == "pairwise_opmd" and not _learns_from_rows(config)
    if not is_pairwise or given is None or name == "none":
        return
    told = "algorithm.policy_loss_fn=pairwise_opmd needs advantages that add up to 0 in a group, and those of"
    if name not in CENTRED:
        message = f"{told} advantage_fn={name} do not: use opmd, grpo, rloo or rec"
        yield Problem("algorithm.advantage_fn", message)
        return
    for key, value in CENTRED[name].items():
        if given[key] != value:
            where, centred = "algorithm.advantage_fn_args", str(value).lower()
            message = (
                f"{told} advantage_fn={name} do not with {key}={str(given[key]).lower()}: use {where}.{key}={centred}"
            )
            yield Problem(f"{where}.{key}", message)


def _a_penalty_reaches_the_advantage(config: RunConfig) -> Iterator[Problem]:
    penalty, name = part_of(config, "kl_penalty_fn"), part_of(config, "advantage_fn")
    part = ADVANTAGES.get(name)
    if penalty != "none" and part is not None and not part.reads_rewards:
        told = f"algorithm.kl_penalty_fn={penalty} lowers rewards, which advantage_fn={name} does not read"
        yield Problem("algorithm.kl_penalty_fn", f"{told}: use kl_loss_fn={penalty}")


def _learns_from_rows(config: RunConfig) -> bool:
    """Whether the parts are judged by what rows of data have, as `checks.rows` does it."""
    return config.experience_source == "rows"


ALGORITHM_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _parts_and_arguments_are_known,
    _aggregation_is_given_once,
    _groups_have_company,
    _pairs_have_two_sides,
    _a_critic_is_there,
    _expert_rows_are_there,
    _advantages_are_there,
    _pairwise_advantages_are_centred,
    _a_penalty_reaches_the_advantage,
)
