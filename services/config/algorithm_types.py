"""The algorithms by name: which parts each is made of unless the configuration says otherwise."""

from dataclasses import dataclass

GROUP_ADVANTAGES = frozenset({"grpo", "grpo_verl", "rloo", "opmd", "asymre", "rec", "step_wise_grpo", "gigpo"})


@dataclass(frozen=True)
class AlgorithmType:
    """The parts of one algorithm, and how many answers to a task it wants."""

    repeat_times: int = 2
    advantage_fn: str = "grpo"
    policy_loss_fn: str = "ppo"
    kl_loss_fn: str = "k2"
    entropy_loss_fn: str = "default"
    sample_strategy: str = "default"
    uses_critic: bool = False
    uses_reference: bool = True

    @property
    def compares_answers(self) -> bool:
        """Whether an advantage comes from comparing the answers to one task."""
        return self.advantage_fn in GROUP_ADVANTAGES


ALGORITHM_TYPES: dict[str, AlgorithmType] = {
    "sft": AlgorithmType(1, "none", "sft", "none", "none", uses_reference=False),
    "cpt": AlgorithmType(1, "none", "sft", "none", "none", uses_reference=False),
    "ppo": AlgorithmType(1, "ppo", uses_critic=True),
    "grpo": AlgorithmType(),
    "grpo_verl": AlgorithmType(advantage_fn="grpo_verl"),
    "dapo": AlgorithmType(16, kl_loss_fn="none", uses_reference=False),
    "reinforceplusplus": AlgorithmType(advantage_fn="reinforceplusplus"),
    "rloo": AlgorithmType(advantage_fn="rloo"),
    "opmd": AlgorithmType(2, "opmd", "opmd"),
    "asymre": AlgorithmType(2, "asymre", "opmd", "none", "none", uses_reference=False),
    "dpo": AlgorithmType(2, "none", "dpo"),
    "topr": AlgorithmType(2, "reinforce", "topr"),
    "cispo": AlgorithmType(policy_loss_fn="cispo"),
    "gspo": AlgorithmType(policy_loss_fn="gspo"),
    "sapo": AlgorithmType(policy_loss_fn="sapo"),
    "mix": AlgorithmType(8, "grpo", "mix", "k2", "mix", "mix"),
    "mix_chord": AlgorithmType(8, "grpo", "mix_chord", "k2", "mix", "mix"),
    "raft": AlgorithmType(1, "none", "sft", "none", "none", uses_reference=False),
    "sppo": AlgorithmType(2, "opmd", "sppo", "none", "none", uses_reference=False),
    "rec": AlgorithmType(2, "rec", "rec"),
    "multi_step_grpo": AlgorithmType(8, "step_wise_grpo"),
    "gigpo": AlgorithmType(8, "gigpo"),
    "on_policy_distill": AlgorithmType(8, "on_policy_distill", "ppo", "none", "none", uses_reference=False),
    "jsd": AlgorithmType(8, "jsd", "ppo", "none", "none", uses_reference=False),
}
