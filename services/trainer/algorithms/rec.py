"""REC, the family of group-relative REINFORCE variants for off-policy data (arXiv 2509.24203)."""

import torch

from services.config.algorithms.loss_arguments import RecLoss
from services.trainer.algorithms.inputs import MAX_LOG_RATIO, Inputs, Result, ratio_of


def rec(inputs: Inputs, arguments: RecLoss) -> Result:
    """`-A w logprob` where the ratio is in range, plus a regularizer.

    `w` is 1, the ratio, the sequence's ratio, or `exp(A / temp)`; ratios carry no gradient.
    """
    ratio = ratio_of(inputs.logprob, inputs.old_logprob).detach()
    drift = inputs.row_mean(inputs.logprob - inputs.old_logprob).detach()
    of_rows = drift.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().unsqueeze(-1)
    is_in_range = _is_in_range(ratio, of_rows, inputs.advantages, arguments)
    weights = _weights(ratio, of_rows, inputs.advantages, arguments)
    losses = -inputs.advantages * weights * inputs.logprob * is_in_range
    loss = inputs.aggregate(losses + _regularizer(inputs, arguments), arguments.agg_mode)
    return loss, {"pg_loss": loss, "pg_clipfrac": inputs.token_mean(~is_in_range)}


def _is_in_range(
    ratio: torch.Tensor, of_rows: torch.Tensor, advantages: torch.Tensor, arguments: RecLoss
) -> torch.Tensor:
    low, high = 1 - arguments.epsilon_low, 1 + arguments.epsilon_high
    if arguments.clip_mode == "none":
        return torch.ones_like(ratio, dtype=torch.bool)
    if arguments.clip_mode == "one-side":
        return _one_side(ratio, advantages, low, high)
    if arguments.clip_mode == "gspo-one-side":
        return _one_side(of_rows, advantages, low, high)
    is_near = (ratio >= low) & (ratio <= high)
    if arguments.clip_mode == "two-side":
        return is_near
    is_far_below = (advantages >= 0) & (ratio <= 1 - arguments.epsilon_low_prime)
    is_far_above = (advantages <= 0) & (ratio >= 1 + arguments.epsilon_high_prime)
    return is_near | is_far_below | is_far_above


def _one_side(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return ((advantages >= 0) & (ratio <= high)) | ((advantages <= 0) & (ratio >= low))


def _weights(ratio: torch.Tensor, of_rows: torch.Tensor, advantages: torch.Tensor, arguments: RecLoss) -> torch.Tensor:
    if arguments.weight == "importance_sampling":
        return ratio
    if arguments.weight == "gspo_importance_sampling":
        return of_rows
    if arguments.weight == "advantage":
        return torch.exp(advantages / arguments.temp)
    return torch.ones_like(ratio)


def _regularizer(inputs: Inputs, arguments: RecLoss) -> torch.Tensor:
    if arguments.regularizer == "k2":
        return arguments.regularizer_coef * (inputs.logprob - inputs.old_logprob).square()
    if arguments.regularizer == "forward-kl":
        return -arguments.regularizer_coef * inputs.logprob
    return torch.zeros_like(inputs.logprob)
