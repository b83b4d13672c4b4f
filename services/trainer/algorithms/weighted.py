"""Losses that weigh the policy gradient by a bounded ratio: CISPO, SAPO, TOPR, plain importance sampling, and none."""

import torch

from services.config.algorithms.loss_arguments import (
    CispoLoss,
    ImportanceSamplingLoss,
    ReinforceLoss,
    SapoLoss,
    ToprLoss,
)
from services.trainer.algorithms.inputs import Inputs, Result, ratio_of


def cispo(inputs: Inputs, arguments: CispoLoss) -> Result:
    """`-A sg(clip(ratio, 1 - low, 1 + high)) logprob`: the weight is clipped, and no token loses its gradient.

    `enable_mask_clip` silences tokens as PPO would. Source: MiniMax-M1, arXiv 2506.13585.
    """
    advantages, ratio = inputs.advantages, ratio_of(inputs.logprob, inputs.old_logprob).detach()
    weight = ratio.clamp(1 - arguments.clip_range_low, 1 + arguments.clip_range_high)
    is_kept = torch.ones_like(ratio, dtype=torch.bool)
    if arguments.enable_mask_clip:
        is_too_high = (ratio > 1 + arguments.mask_clip_range_high) & (advantages > 0)
        is_too_low = (ratio < 1 - arguments.mask_clip_range_low) & (advantages < 0)
        is_kept = ~(is_too_high | is_too_low)
    loss = inputs.aggregate(-advantages * weight * is_kept * inputs.logprob, arguments.agg_mode)
    metrics = {
        "cispo_loss": loss,
        "ppo_kl": inputs.token_mean(inputs.old_logprob - inputs.logprob),
        "unmasked_frac": inputs.token_mean(is_kept),
    }
    return loss, metrics


def sapo(inputs: Inputs, arguments: SapoLoss) -> Result:
    """`-A sg(gate) logprob` with `gate = sigmoid(tau (ratio - 1)) 4 / tau`, `tau` by the advantage's sign.

    With `differentiate_gate` the objective of the paper, `-A gate`. Source: arXiv 2511.20347.
    """
    advantages, ratio = inputs.advantages, ratio_of(inputs.logprob, inputs.old_logprob)
    tau = torch.where(advantages > 0, arguments.tau_pos, arguments.tau_neg).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
    losses = -advantages * (gate if arguments.differentiate_gate else gate.detach() * inputs.logprob)
    loss = inputs.aggregate(losses, arguments.agg_mode)
    metrics = {
        "sapo_loss": loss,
        "ppo_kl": inputs.token_mean(inputs.old_logprob - inputs.logprob),
        "avg_soft_gate": inputs.token_mean(gate),
        "avg_ratio": inputs.token_mean(ratio),
        "pos_adv_frac": inputs.token_mean(advantages > 0),
    }
    return loss, metrics


def topr(inputs: Inputs, arguments: ToprLoss) -> Result:
    """`-sg(alpha) A logprob`, where `alpha` is the ratio, at most 1, for advantages up to the threshold, else 1.

    Source: arXiv 2503.14286. The paper's reward is the advantage here; the type `topr` passes the reward itself.
    """
    ratio = ratio_of(inputs.logprob, inputs.old_logprob).detach()
    is_negative = inputs.advantages <= arguments.advantage_threshold
    alpha = torch.where(is_negative, ratio.clamp(max=1), torch.ones_like(ratio))
    loss = inputs.aggregate(-alpha * inputs.advantages * inputs.logprob, arguments.agg_mode)
    metrics = {
        "topr_loss": loss,
        "avg_alpha": inputs.token_mean(alpha),
        "avg_ratio": inputs.token_mean(ratio),
    }
    return loss, metrics


def importance_sampling(inputs: Inputs, arguments: ImportanceSamplingLoss) -> Result:
    """`-A ratio`, unclipped: right for policies close to the sampler, such as on-policy distillation."""
    ratio = ratio_of(inputs.logprob, inputs.old_logprob)
    loss = inputs.aggregate(-inputs.advantages * ratio, arguments.agg_mode)
    metrics = {
        "pg_loss": loss,
        "ratio/mean": inputs.token_mean(ratio),
        "approx_kl": inputs.token_mean(-ratio.log()),
    }
    return loss, metrics


def reinforce(inputs: Inputs, arguments: ReinforceLoss) -> Result:
    """`-A logprob`. Source: Williams 1992; veRL's `loss_type: reinforce`, where a rollout correction weighs it."""
    loss = inputs.aggregate(-inputs.advantages * inputs.logprob, arguments.agg_mode)
    return loss, {"pg_loss": loss}
