"""Losses that clip the ratio between the policy and the one that sampled: PPO, GSPO, and sPPO."""

from dataclasses import dataclass

import torch

from services.config.algorithms.loss_arguments import GspoLoss, PpoLoss, SppoLoss
from services.trainer.algorithms.inputs import MAX_LOG_RATIO, Inputs, Metrics, Result, ratio_of


@dataclass(frozen=True)
class Surrogate:
    """The clipped surrogate of each token, and where either clip took hold; all `B x T`."""

    losses: torch.Tensor
    is_clipped: torch.Tensor
    is_clipped_below: torch.Tensor


def surrogate(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float, dual: float | None) -> Surrogate:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))`, and for `A < 0` at most `-A dual` where `dual` is given.

    Sources: PPO, arXiv 1707.06347; dual clip, arXiv 1912.09729.
    """
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    losses = torch.maximum(plain, clipped)
    is_below = torch.zeros_like(losses, dtype=torch.bool)
    if dual is not None:
        bound = -advantages * dual
        is_below = (losses > bound) & (advantages < 0)
        losses = torch.where(advantages < 0, torch.minimum(losses, bound), losses)
    return Surrogate(losses, clipped > plain, is_below)


def ppo(inputs: Inputs, arguments: PpoLoss) -> Result:
    """Clipped PPO with dual clip.

    `enable_sequence_masking` takes tokens of negative advantage out of rows whose mean of `old - logprob` is above
    `delta_sequence_masking` (DeepSeek-V3.2, arXiv 2512.02556); they stay in the divisor. `fallback_to_policy_gradient`
    takes the ratio to the policy itself, so that the gradient is the plain one.
    """
    base = inputs.logprob.detach() if arguments.fallback_to_policy_gradient else inputs.old_logprob
    log_ratio = (inputs.logprob - base).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    found = surrogate(log_ratio.exp(), inputs.advantages, arguments.low, arguments.high, arguments.clip_ratio_c)
    losses, extra = found.losses, Metrics()
    if arguments.enable_sequence_masking:
        drift = inputs.row_mean(-log_ratio)
        is_masked = (inputs.advantages < 0) & (drift > arguments.delta_sequence_masking).unsqueeze(-1)
        losses = losses * ~is_masked
        extra = {
            "seq_mask/masked_tokens": is_masked.sum() / (inputs.totals.tokens + 1e-10),
            "seq_mask/mean_sequence_kl": inputs.sequence_mean(drift),
        }
    loss = inputs.aggregate(losses, arguments.agg_mode)
    return loss, clip_metrics(inputs, loss, found, log_ratio) | extra


def clip_metrics(inputs: Inputs, loss: torch.Tensor, found: Surrogate, log_ratio: torch.Tensor) -> Metrics:
    return {
        "pg_loss": loss,
        "pg_clipfrac": inputs.token_mean(found.is_clipped),
        "pg_clipfrac_lower": inputs.token_mean(found.is_clipped_below),
        "ppo_kl": inputs.token_mean(-log_ratio),
    }


def gspo(inputs: Inputs, arguments: GspoLoss) -> Result:
    """GSPO-token: every token has its sequence's ratio, the exponential of the mean log-ratio.

    Source: arXiv 2507.18071. The value is the sequence's, the gradient each token's own.
    """
    log_ratio = inputs.logprob - inputs.old_logprob
    of_rows = inputs.row_mean(log_ratio)
    bounded = of_rows.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).unsqueeze(-1)
    ratio = torch.exp(inputs.logprob - inputs.logprob.detach() + bounded)
    found = surrogate(ratio, inputs.advantages, arguments.low, arguments.high, dual=None)
    loss = inputs.aggregate(found.losses, arguments.agg_mode)
    metrics = {
        "pg_loss": loss,
        "pg_clipfrac": inputs.token_mean(found.is_clipped),
        "ppo_kl": inputs.token_mean(-log_ratio),
        "ppo_kl_seq": inputs.sequence_mean(-of_rows),
    }
    return loss, metrics


def sppo(inputs: Inputs, arguments: SppoLoss) -> Result:
    """`-A (logprob - old)` where the ratio lies within `[1 / (1 + epsilon), 1 + epsilon]`. Source: arXiv 2108.05828."""
    bound = 1 + arguments.epsilon
    ratio = ratio_of(inputs.logprob, inputs.old_logprob).detach()
    is_within = (ratio >= 1 / bound) & (ratio <= bound)
    losses = -inputs.advantages * (inputs.logprob - inputs.old_logprob) * is_within
    loss = inputs.aggregate(losses, arguments.agg_mode)
    return loss, {"pg_loss": loss, "pg_clipfrac": inputs.token_mean(~is_within)}
