"""The algorithms by name: which parts each is made of unless the configuration says otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AlgorithmType:
    """The parts of one algorithm, and how many answers to a task it wants.

    `args` holds arguments that this algorithm sets for a part of its own, over the part's defaults.
    """

    repeat_times: int = 2
    advantage_fn: str = "grpo"
    policy_loss_fn: str = "ppo"
    kl_loss_fn: str = "k2"
    entropy_loss_fn: str = "default"
    sample_strategy: str = "default"
    kl_penalty_fn: str = "none"
    uses_critic: bool = False
    args: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def _plain(repeat_times: int, advantage_fn: str, policy_loss_fn: str) -> AlgorithmType:
    """An algorithm without KL and entropy terms."""
    return AlgorithmType(repeat_times, advantage_fn, policy_loss_fn, "none", "none")


ALGORITHM_TYPES: dict[str, AlgorithmType] = {
    "sft": _plain(1, "none", "sft"),
    "cpt": _plain(1, "none", "sft"),
    "ppo": AlgorithmType(1, "ppo", uses_critic=True),
    "grpo": AlgorithmType(),
    "grpo_verl": AlgorithmType(advantage_fn="grpo_verl"),
    "dapo": AlgorithmType(16, kl_loss_fn="none"),
    "reinforceplusplus": AlgorithmType(advantage_fn="reinforceplusplus"),
    "rloo": AlgorithmType(advantage_fn="rloo"),
    "remax": AlgorithmType(advantage_fn="remax"),
    "opmd": AlgorithmType(2, "opmd", "opmd"),
    "pairwise_opmd": AlgorithmType(2, "opmd", "pairwise_opmd"),
    "asymre": _plain(2, "asymre", "opmd"),
    "dpo": AlgorithmType(2, "none", "dpo"),
    "topr": AlgorithmType(2, "reinforce", "topr"),
    "cispo": AlgorithmType(policy_loss_fn="cispo"),
    "gspo": AlgorithmType(policy_loss_fn="gspo"),
    "sapo": AlgorithmType(policy_loss_fn="sapo"),
    "mix": AlgorithmType(8, "grpo", "mix", "k2", "mix", "mix"),
    "mix_chord": AlgorithmType(8, "grpo", "mix_chord", "k2", "mix", "mix"),
    "raft": _plain(1, "none", "sft"),
    "sppo": _plain(2, "opmd", "sppo"),
    "rec": AlgorithmType(2, "rec", "rec"),
    "multi_step_grpo": AlgorithmType(8, "step_wise_grpo"),
    "gigpo": AlgorithmType(8, "gigpo"),
    "on_policy_distill": _plain(8, "on_policy_distill", "ppo"),
    "jsd": _plain(8, "jsd", "ppo"),
    "decoupled_ppo": _plain(8, "grpo", "decoupled_ppo"),
    "tis": _plain(8, "grpo", "tis"),
    "icepop": _plain(8, "grpo", "icepop"),
    "geo_mask": _plain(8, "grpo", "geo_mask"),
    "dppo_tv": AlgorithmType(8, "grpo", "dppo_tv", "none", "none", args={"advantage_fn": {"std_normalize": False}}),
}
