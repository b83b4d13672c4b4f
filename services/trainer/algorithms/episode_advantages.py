"""Advantages of episodes of several steps: each row of a batch is one step of an answer to a task."""

from dataclasses import dataclass

import torch

from services.config.algorithms.advantage_arguments import GigpoAdvantage, StepWiseGrpoAdvantage
from services.trainer.algorithms.statistics import deviation, statistics


@dataclass(frozen=True)
class Episodes:
    """A batch of `B` steps. `groups` names the task, `episodes` the answer to it, `steps` the place in the answer.

    `rewards` are the episodes', on every step or only the last one. `states` names the state that a step was taken in,
    empty where that is not known; `step_rewards` holds the steps' own, NaN where there is none.
    """

    rewards: torch.Tensor
    groups: torch.Tensor
    episodes: torch.Tensor
    steps: torch.Tensor
    states: list[str]
    step_rewards: torch.Tensor

    @property
    def keys(self) -> torch.Tensor:
        """A number for the episode of each row, from 0, across tasks."""
        pairs = torch.stack([self.groups.to(torch.int64), self.episodes.to(torch.int64)], dim=-1)
        keys: torch.Tensor = torch.unique(pairs, dim=0, return_inverse=True)[1]
        return keys

    def last_rows(self, keys: torch.Tensor) -> torch.Tensor:
        """The row of each episode's last step, `E`, by the episode's number."""
        order = torch.argsort(self.steps, stable=True)
        last = torch.zeros(int(keys.max()) + 1, dtype=torch.int64)
        for row in order.tolist():
            last[keys[row]] = row
        return last


def step_wise_grpo(episodes: Episodes, arguments: StepWiseGrpoAdvantage) -> torch.Tensor:
    """GRPO over the rewards of the episodes' last steps, `B`: every step has its episode's advantage.

    `enable_step_norm` divides by the number of the episode's steps. Tasks whose deviation is not above `std_threshold`
    have advantage 0. Source: rLLM's broadcast of the last step.
    """
    keys = episodes.keys
    last = episodes.last_rows(keys)
    rewards, groups = episodes.rewards[last], episodes.groups[last]
    found = statistics(rewards, groups)
    std = deviation(rewards) if arguments.std_cal_level == "batch" else found.std
    advantages = (rewards - found.mean) / (std + arguments.epsilon)
    if arguments.enable_step_norm:
        advantages = advantages / torch.bincount(keys)
    if arguments.std_threshold is not None:
        advantages = advantages * ((found.std > arguments.std_threshold) & (found.count > 1))
    return advantages[keys]


def gigpo(episodes: Episodes, arguments: GigpoAdvantage) -> torch.Tensor:
    """`A_E + omega A_S`, `B`: the episode's among the answers to its task, and the step's among all steps taken in the
    same state, by the discounted return from there on; 0 where no other step was. Source: arXiv 2505.10978.

    A step's reward is its own, or, in an episode without any, the episode's reward on the last step.
    """
    keys = episodes.keys
    last = episodes.last_rows(keys)
    rewards = _step_rewards(episodes, keys, last)
    sums = torch.zeros(len(last), dtype=rewards.dtype).index_add_(0, keys, rewards)
    of_episodes = _normalized(sums, episodes.groups[last], arguments)[keys]
    returns = _discounted(rewards, keys, episodes.steps, arguments.gamma)
    return of_episodes + arguments.omega * _among_states(returns, episodes.states, arguments)


def _step_rewards(episodes: Episodes, keys: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    own = ~episodes.step_rewards.isnan()
    has_own = torch.zeros(len(last), dtype=torch.bool)
    has_own[keys[own]] = True
    at_the_end = torch.zeros_like(episodes.rewards)
    at_the_end[last] = episodes.rewards[last]
    return torch.where(has_own[keys], episodes.step_rewards.nan_to_num(0.0), at_the_end)


def _discounted(rewards: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor, gamma: float) -> torch.Tensor:
    """From the end of each episode, `R_t = r_t + gamma R_(t+1)`."""
    returns = torch.zeros_like(rewards)
    ahead: dict[int, float] = {}
    for row in torch.argsort(steps, descending=True, stable=True).tolist():
        key = int(keys[row])
        ahead[key] = float(rewards[row]) + gamma * ahead.get(key, 0.0)
        returns[row] = ahead[key]
    return returns


def _among_states(returns: torch.Tensor, states: list[str], arguments: GigpoAdvantage) -> torch.Tensor:
    numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
    buckets = torch.tensor([numbers[state] for state in states], dtype=torch.int64)
    scores = _normalized(returns, buckets, arguments)
    is_known = torch.tensor([bool(state) for state in states])
    return torch.where(is_known & (statistics(returns, buckets).count > 1), scores, torch.zeros_like(scores))


def _normalized(values: torch.Tensor, groups: torch.Tensor, arguments: GigpoAdvantage) -> torch.Tensor:
    found = statistics(values, groups)
    scale = found.std if arguments.fnorm == "std" else torch.ones_like(found.std)
    return (values - found.mean) / (scale + arguments.epsilon)
