"""The parts that an algorithm is made of, by name, with what each takes and reads. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from services.config.algorithms import advantage_arguments as advantages
from services.config.algorithms import loss_arguments as losses
from services.config.algorithms.advantage_arguments import NoArguments
from services.config.algorithms.arguments import Arguments
from services.config.algorithms.types import ALGORITHM_TYPES

Kind = Literal["advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn", "sample_strategy"]


class ArgumentError(ValueError):
    """Arguments that a part does not take; `faults` has the argument and the sentence of each."""

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(sentence for _, sentence in self.faults))


class KlArguments(Arguments):
    """Of a KL term, as a loss or as a penalty of the reward. `adaptive` holds the KL near `target_kl`."""

    kl_coef: float = Field(0.001, ge=0)
    adaptive: bool = False
    target_kl: float | None = Field(None, gt=0)
    horizon: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _adaptive_has_a_target(self) -> Self:
        if self.adaptive and (self.target_kl is None or self.horizon is None):
            raise ValueError("adaptive holds the KL near a target: give target_kl and horizon")
        return self


class EntropyArguments(Arguments):
    entropy_coef: float = 0.0


class StalenessArguments(Arguments):
    """`max_staleness` None is no bound."""

    max_staleness: float | None = Field(None, ge=0)


class MixArguments(Arguments):
    expert_data_ratio: float = 0.5
    sft_dataset_name: str = "sft_dataset"


@dataclass(frozen=True)
class Part:
    """A part: its arguments, and the tensors it reads beside the log-probs (a loss) or the rewards (an advantage)."""

    arguments: type[Arguments] = NoArguments
    reads: frozenset[str] = frozenset()

    def defaults(self) -> dict[str, object]:
        return self.arguments().complete()


@dataclass(frozen=True)
class PolicyLossPart(Part):
    """`is_paired`: rows alternate between a chosen answer and the rejected one."""

    is_paired: bool = False

    @property
    def learns_from_advantages(self) -> bool:
        return "advantages" in self.reads


AdvantageKind = Literal["group", "episodes", "tokens"]


@dataclass(frozen=True)
class AdvantagePart(Part):
    """`kind` is the shape of its input; `compares`: it holds an answer against the other answers to its task."""

    kind: AdvantageKind = "group"
    compares: bool = False
    reads_rewards: bool = True


def _loss(arguments: type[losses.LossArguments], *reads: str, is_paired: bool = False) -> PolicyLossPart:
    return PolicyLossPart(arguments, frozenset(reads), is_paired)


def _advantage(
    arguments: type[Arguments] = NoArguments,
    kind: AdvantageKind = "group",
    *reads: str,
    compares: bool = False,
    reads_rewards: bool = True,
) -> AdvantagePart:
    return AdvantagePart(arguments, frozenset(reads), kind, compares, reads_rewards)


_OLD, _ADV, _PROX = "old_logprob", "advantages", "proximal_logprob"

POLICY_LOSSES: dict[str, PolicyLossPart] = {
    "ppo": _loss(losses.PpoLoss, _OLD, _ADV),
    "gspo": _loss(losses.GspoLoss, _OLD, _ADV),
    "sppo": _loss(losses.SppoLoss, _OLD, _ADV),
    "cispo": _loss(losses.CispoLoss, _OLD, _ADV),
    "sapo": _loss(losses.SapoLoss, _OLD, _ADV),
    "topr": _loss(losses.ToprLoss, _OLD, _ADV),
    "importance_sampling": _loss(losses.ImportanceSamplingLoss, _OLD, _ADV),
    "reinforce": _loss(losses.ReinforceLoss, _ADV),
    "opmd": _loss(losses.OpmdLoss, _ADV),
    "pairwise_opmd": _loss(losses.OpmdLoss, _ADV),
    "rec": _loss(losses.RecLoss, _OLD, _ADV),
    "dpo": _loss(losses.DpoLoss, "ref_logprob", is_paired=True),
    "sft": _loss(losses.SftLoss),
    "sft_is": _loss(losses.SftLoss),
    "sft_phi": _loss(losses.SftPhiLoss),
    "mix": _loss(losses.MixLoss, _OLD, _ADV, "expert_mask"),
    "mix_chord": _loss(losses.MixChordLoss, _OLD, _ADV, "expert_mask", "step"),
    "decoupled_ppo": _loss(losses.DecoupledPpoLoss, _OLD, _ADV, _PROX),
    "tis": _loss(losses.TisLoss, _OLD, _ADV, _PROX),
    "icepop": _loss(losses.IcepopLoss, _OLD, _ADV, _PROX),
    "geo_mask": _loss(losses.GeoMaskLoss, _OLD, _ADV, _PROX),
    "dppo_tv": _loss(losses.DppoTvLoss, _OLD, _ADV),
}
ADVANTAGES: dict[str, AdvantagePart] = {
    "grpo": _advantage(advantages.GrpoAdvantage, compares=True),
    "grpo_verl": _advantage(advantages.Normalized, compares=True),
    "rloo": _advantage(compares=True),
    "opmd": _advantage(advantages.OpmdAdvantage, compares=True),
    "opmd_verl": _advantage(advantages.OpmdAdvantage, compares=True),
    "asymre": _advantage(advantages.AsymreAdvantage, compares=True),
    "asymre_verl": _advantage(advantages.AsymreAdvantage, compares=True),
    "rec": _advantage(advantages.RecAdvantage, compares=True),
    "reinforce": _advantage(),
    "step_wise_grpo": _advantage(advantages.StepWiseGrpoAdvantage, "episodes", compares=True),
    "gigpo": _advantage(advantages.GigpoAdvantage, "episodes", compares=True),
    "ppo": _advantage(advantages.GaeAdvantage, "tokens", "values"),
    "reinforceplusplus": _advantage(advantages.ReturnAdvantage, "tokens"),
    "remax": _advantage(NoArguments, "tokens", "baselines"),
    "on_policy_distill": _advantage(
        advantages.DistillAdvantage, "tokens", "old_logprob", "teacher_logprob", reads_rewards=False
    ),
    "jsd": _advantage(advantages.JsdAdvantage, "tokens", "old_logprob", "teacher_logprob", reads_rewards=False),
    "clipb": _advantage(advantages.ClipBAdvantage, "tokens", "old_logprob", "entropy", compares=True),
    "clipv": _advantage(advantages.ClipVAdvantage, "tokens", "old_logprob", "entropy", "nec", compares=True),
    "none": _advantage(reads_rewards=False),
}
KL_FNS: dict[str, Part] = {
    name: Part(KlArguments) for name in ("none", "k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3")
}
ENTROPY_LOSSES: dict[str, Part] = {name: Part(EntropyArguments) for name in ("default", "mix", "none")}
SAMPLE_STRATEGIES: dict[str, Part] = {
    "default": Part(),
    "warmup": Part(),
    "staleness_control": Part(StalenessArguments),
    "mix": Part(MixArguments),
}
PARTS: dict[Kind, Mapping[str, Part]] = {
    "advantage_fn": ADVANTAGES,
    "policy_loss_fn": POLICY_LOSSES,
    "kl_penalty_fn": KL_FNS,
    "kl_loss_fn": KL_FNS,
    "entropy_loss_fn": ENTROPY_LOSSES,
    "sample_strategy": SAMPLE_STRATEGIES,
}


def arguments(kind: Kind, name: str, *layers: Mapping[str, object] | None) -> Arguments:
    """The arguments of a part: its defaults, over them each layer in turn, the last one winning.

    Raises:
        ValueError: there is no part of that name.
        ArgumentError: it does not take such an argument, or not such a value.
    """
    part = known(kind, name)
    merged: dict[str, object] = {}
    for layer in layers:
        merged |= part.arguments.covering(layer or {})
    unknown = [key for key in merged if key not in part.arguments.model_fields]
    if unknown:
        raise ArgumentError((key, _unknown(kind, name, part, key)) for key in unknown)
    try:
        return part.arguments.model_validate(merged)
    except ValidationError as error:
        raise ArgumentError(_refused(kind, error)) from None


def known(kind: Kind, name: str) -> Part:
    """The part of that name; ValueError with the names that there are."""
    parts = PARTS[kind]
    if name not in parts:
        meant = ALGORITHM_TYPES.get(name)
        hint = f"it is an algorithm_type, whose {kind} is {getattr(meant, kind)}; " if meant else ""
        raise ValueError(f"{kind}={name!r} is not known: {hint}{_advice(name, parts)}")
    return parts[name]


def _unknown(kind: Kind, name: str, part: Part, key: str) -> str:
    return f"{kind}_args.{key} is no argument of {name}: {_advice(key, part.arguments.model_fields)}"


def _advice(word: str, names: Iterable[str]) -> str:
    choices = list(names)
    meant = get_close_matches(word, choices, n=1)
    hint = f"did you mean {meant[0]}? " if meant else ""
    return f"{hint}use one of {', '.join(choices)}" if choices else "it takes none"


def _refused(kind: Kind, error: ValidationError) -> list[tuple[str, str]]:
    faults = []
    for details in error.errors():
        key = ".".join(str(part) for part in details["loc"])
        said = details["msg"].removeprefix("Value error, ")
        named = f"{kind}_args.{key}={details['input']!r} is refused" if key else f"{kind}_args"
        faults.append((key, f"{named}: {said[0].lower()}{said[1:]}"))
    return faults
