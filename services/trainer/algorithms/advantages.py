"""The advantage functions by name, in three shapes: of groups, of episodes, of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy.typing as npt
import torch

from services.config.algorithms.arguments import Arguments
from services.config.algorithms.parts import ADVANTAGES, AdvantageKind, arguments
from services.trainer.algorithms import entropy_clipped, episode_advantages, group_advantages, token_advantages
from services.trainer.algorithms.episode_advantages import Episodes
from services.trainer.algorithms.token_advantages import Estimates, TokenInputs

GROUP: dict[str, Callable[[torch.Tensor, torch.Tensor | None, Any], torch.Tensor]] = {
    "grpo": group_advantages.grpo,
    "grpo_verl": group_advantages.grpo_verl,
    "rloo": group_advantages.rloo,
    "opmd": group_advantages.opmd,
    "opmd_verl": group_advantages.opmd,
    "asymre": group_advantages.asymre,
    "asymre_verl": group_advantages.asymre,
    "rec": group_advantages.rec,
    "reinforce": group_advantages.reinforce,
    "none": group_advantages.none,
}
EPISODES: dict[str, Callable[[Episodes, Any], torch.Tensor]] = {
    "step_wise_grpo": episode_advantages.step_wise_grpo,
    "gigpo": episode_advantages.gigpo,
}
TOKENS: dict[str, Callable[[TokenInputs, Any], Estimates]] = {
    "ppo": token_advantages.ppo,
    "reinforceplusplus": token_advantages.reinforceplusplus,
    "remax": token_advantages.remax,
    "on_policy_distill": token_advantages.on_policy_distill,
    "jsd": token_advantages.jsd,
    "clipb": entropy_clipped.clipb,
    "clipv": entropy_clipped.clipv,
}


Rewards = torch.Tensor | npt.NDArray[Any] | Sequence[Any]


@dataclass(frozen=True)
class _Named:
    name: str
    arguments: Arguments

    @property
    def needs(self) -> frozenset[str]:
        """What it reads beside the rewards: fields of `TokenInputs`."""
        return ADVANTAGES[self.name].reads


class GroupAdvantage(_Named):
    """An advantage of each answer among the answers to its task."""

    kind: Literal["group"] = "group"

    def __call__(self, rewards: Rewards, mean_logprobs: Rewards | None = None) -> torch.Tensor:
        """Advantages `P x G` of rewards `P x G`, or `G` of one group's; NaN for an answer that is not there.

        `mean_logprobs`, shaped alike, the mean log-prob of each answer's tokens, is read where `rank_penalty` is set.

        Raises:
            ValueError: the rewards have another shape, or `mean_logprobs` has, or is missing.
        """
        given = _floats(rewards)
        likely = None if mean_logprobs is None else _floats(mean_logprobs)
        if given.dim() not in (1, 2) or (likely is not None and likely.shape != given.shape):
            shapes = " and ".join(str(tuple(each.shape)) for each in (given, likely) if each is not None)
            raise ValueError(f"{self.name} got rewards (and mean_logprobs) of shape {shapes}: give P x G, or G")
        if given.dim() == 2:
            return GROUP[self.name](given, likely, self.arguments)
        return GROUP[self.name](given[None], None if likely is None else likely[None], self.arguments)[0]


class EpisodeAdvantage(_Named):
    """An advantage of each step of episodes of several steps, over a whole batch."""

    kind: Literal["episodes"] = "episodes"

    def __call__(self, episodes: Episodes) -> torch.Tensor:
        """Advantages `B`."""
        return EPISODES[self.name](episodes, self.arguments)


class TokenAdvantage(_Named):
    """An advantage of each token, over a whole batch."""

    kind: Literal["tokens"] = "tokens"

    def __call__(self, inputs: TokenInputs) -> Estimates:
        mask = inputs.action_mask.to(inputs.token_rewards.dtype)
        return TOKENS[self.name](replace(inputs, action_mask=mask), self.arguments)


def _floats(values: Rewards) -> torch.Tensor:
    found = torch.as_tensor(values)
    return found if found.is_floating_point() else found.to(torch.float32)


Advantage = GroupAdvantage | EpisodeAdvantage | TokenAdvantage
OF_KIND: dict[AdvantageKind, type[GroupAdvantage] | type[EpisodeAdvantage] | type[TokenAdvantage]] = {
    "group": GroupAdvantage,
    "episodes": EpisodeAdvantage,
    "tokens": TokenAdvantage,
}


def advantage(name: str, **args: object) -> Advantage:
    """The advantage function of that name; `args` replace single defaults. Its `kind` says what it is called with.

    Raises:
        ValueError: there is none of that name, or it does not take these arguments.
    """
    checked = arguments("advantage_fn", name, args)
    return OF_KIND[ADVANTAGES[name].kind](name, checked)
