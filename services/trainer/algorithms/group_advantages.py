"""Advantages that hold an answer against the other answers to its task.

Rewards come as `P x G`: a row of answers for each task. NaN stands for an answer that is not there, and stays NaN.
"""

import torch

from services.config.algorithms.advantage_arguments import (
    AsymreAdvantage,
    GrpoAdvantage,
    NoArguments,
    Normalized,
    OpmdAdvantage,
    RecAdvantage,
)
from services.trainer.algorithms.statistics import deviation

Rewards = torch.Tensor
MeanLogprobs = torch.Tensor | None


def grpo(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: GrpoAdvantage) -> torch.Tensor:
    """`(r - mean) / (std + epsilon)`, the unbiased deviation; the reward itself where an answer is alone.

    `std_cal_level: batch` divides by the deviation of all rewards (arXiv 2508.08221); without `std_normalize` nothing
    is divided by (Dr. GRPO, 2503.20783). `rank_penalty` first lowers the rewards of likely answers. Groups whose
    deviation is not above `std_threshold` have advantage 0. Source: DeepSeekMath, arXiv 2402.03300.
    """
    scores = _rank_penalized(rewards, mean_logprobs, arguments.rank_penalty)
    mean, std = _moments(scores)
    advantages = scores - mean
    if arguments.std_normalize:
        is_of_batch = arguments.std_cal_level == "batch"
        advantages = advantages / ((deviation(scores[~scores.isnan()]) if is_of_batch else std) + arguments.epsilon)
    if arguments.std_threshold is None:
        return advantages
    is_dull = (std <= arguments.std_threshold) | (_counts(rewards) < 2)
    return torch.where(is_dull & ~rewards.isnan(), torch.zeros_like(advantages), advantages)


def grpo_verl(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: Normalized) -> torch.Tensor:
    """GRPO without options."""
    return grpo(rewards, mean_logprobs, GrpoAdvantage(epsilon=arguments.epsilon))


def rloo(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: NoArguments) -> torch.Tensor:
    """The reward less the mean of the other answers', `(r - mean) n / (n - 1)`. Source: arXiv 2402.14740."""
    mean, _ = _moments(rewards)
    count = _counts(rewards)
    return (rewards - mean) * torch.where(count > 1, count / (count - 1).clamp(min=1), torch.ones_like(count))


def opmd(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: OpmdAdvantage) -> torch.Tensor:
    """The reward less a baseline: the mean, or `tau log(mean(exp(r / tau)))`; 0 where an answer is alone."""
    if arguments.opmd_baseline == "mean":
        return rewards - _moments(rewards)[0]
    tau, count = arguments.tau, _counts(rewards)
    scaled = (rewards / tau).masked_fill(rewards.isnan(), -torch.inf)
    baseline = tau * (torch.logsumexp(scaled, dim=-1, keepdim=True) - count.log())
    return rewards - torch.where(count > 1, baseline, torch.zeros_like(baseline))


def asymre(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: AsymreAdvantage) -> torch.Tensor:
    """The reward less the shifted mean; a negative shift learns more from good answers. Source: arXiv 2506.20520."""
    mean, _ = _moments(rewards)
    return rewards - torch.where(_counts(rewards) > 1, mean + arguments.baseline_shift, torch.zeros_like(mean))


def rec(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: RecAdvantage) -> torch.Tensor:
    """The reward less the mean, optionally over the population's deviation. Source: arXiv 2509.24203.

    `drop: balance` gives advantage 0 to as many answers below the mean as these outnumber the others: the last ones,
    for answers to one task come in no order. The statistics are then of the rest.
    """
    kept = rewards if arguments.drop is None else _balanced(rewards)
    mean, std = _moments(kept)
    advantages = rewards - mean
    if arguments.std_normalize:
        count = _counts(kept)
        of_population = torch.where(count > 1, std * ((count - 1) / count).sqrt(), std)
        advantages = advantages / (of_population + arguments.epsilon)
    return torch.where(kept.isnan() & ~rewards.isnan(), torch.zeros_like(advantages), advantages)


def reinforce(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: NoArguments) -> torch.Tensor:
    """The reward."""
    return rewards.clone()


def none(rewards: Rewards, mean_logprobs: MeanLogprobs, arguments: NoArguments) -> torch.Tensor:
    """Zeros, for losses that learn from no advantage."""
    return torch.zeros_like(rewards)


def _counts(rewards: Rewards) -> torch.Tensor:
    return (~rewards.isnan()).sum(-1, keepdim=True).to(rewards.dtype)


def _moments(rewards: Rewards) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and unbiased deviation of each row, `P x 1`; 0 and 1 where there are fewer than two answers."""
    count = _counts(rewards)
    mean = rewards.nanmean(-1, keepdim=True)
    variance = (rewards - mean).square().nansum(-1, keepdim=True) / (count - 1).clamp(min=1)
    is_alone = count < 2
    return mean.masked_fill(is_alone, 0), variance.sqrt().masked_fill(is_alone, 1)


def _rank_penalized(rewards: Rewards, mean_logprobs: MeanLogprobs, penalty: float | None) -> torch.Tensor:
    """`r (1 - penalty rank / n)`, rank 0 for the least likely answer. Source: arXiv 2506.02355."""
    if penalty is None:
        return rewards
    if mean_logprobs is None:
        raise ValueError(f"rank_penalty={penalty} ranks answers by how likely they are: pass mean_logprobs")
    likely = mean_logprobs.masked_fill(rewards.isnan(), torch.inf)
    ranks = likely.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    is_ranked = _counts(rewards) > 1
    return torch.where(is_ranked, rewards * (1 - penalty * ranks / _counts(rewards).clamp(min=1)), rewards)


def _balanced(rewards: Rewards) -> torch.Tensor:
    """The rewards with NaN for the surplus of those below their row's mean."""
    mean, _ = _moments(rewards)
    is_below = rewards < mean
    is_above = rewards >= mean
    order = is_below.flip(-1).cumsum(-1).flip(-1)
    surplus = is_below.sum(-1, keepdim=True) - is_above.sum(-1, keepdim=True)
    return rewards.masked_fill(is_below & (order <= surplus), torch.nan)
