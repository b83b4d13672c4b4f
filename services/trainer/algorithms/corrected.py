"""Losses that stay stable on stale experiences: the policy moves around where it was at the batch's start ("proximal"),
and a weight without gradient says what a token of the sampler ("behaviour") is worth there.

`proximal / behaviour` holds both the staleness of the weights and the differences between the engines.
"""

import torch

from services.config.algorithms.loss_arguments import (
    CorrectedLoss,
    DecoupledPpoLoss,
    DppoTvLoss,
    GeoMaskLoss,
    IcepopLoss,
    Level,
    TisLoss,
)
from services.trainer.algorithms.clipped import clip_metrics, surrogate
from services.trainer.algorithms.inputs import MAX_LOG_RATIO, Inputs, Result, ratio_of


def decoupled_ppo(inputs: Inputs, arguments: DecoupledPpoLoss) -> Result:
    """`-w min(r A, clip(r) A)`, `r` the ratio to the proximal policy and `w` that of the proximal to the sampler.

    A token whose `w` is above `weight_cap` is left out, or, with `cap_action: clamp`, weighs the cap.
    Source: AReaL, arXiv 2505.24298.
    """
    weight = _behaviour_ratio(inputs, "token")
    cap = arguments.weight_cap
    is_outside = torch.zeros_like(weight, dtype=torch.bool) if cap is None else weight > cap
    if arguments.cap_action == "clamp" and cap is not None:
        return _weighted(inputs, arguments, weight.clamp(max=cap), is_outside)
    return _weighted(inputs, arguments, weight * ~is_outside, is_outside)


def tis(inputs: Inputs, arguments: TisLoss) -> Result:
    """Truncated importance sampling: PPO around the proximal policy, weighed by `min(w, upper)`.

    `level` `sequence` takes `w` of the whole response, the product of its tokens'. Source: Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training"; veRL's rollout correction.
    """
    weight = _behaviour_ratio(inputs, arguments.level)
    return _weighted(inputs, arguments, weight.clamp(max=arguments.upper), weight > arguments.upper)


def icepop(inputs: Inputs, arguments: IcepopLoss) -> Result:
    """As `tis`, but what lies outside `[lower, upper]` is left out, on both sides. Source: arXiv 2510.18855."""
    weight = _behaviour_ratio(inputs, arguments.level)
    is_outside = (weight < arguments.lower) | (weight > arguments.upper)
    return _weighted(inputs, arguments, weight * ~is_outside, is_outside)


def geo_mask(inputs: Inputs, arguments: GeoMaskLoss) -> Result:
    """PPO around the proximal policy on the rows whose geometric mean of `w` lies within `[lower, upper]`.

    The weight is 1 or 0: no product of ratios, so that it does not depend on the length. Source: SkyRL's geometric
    sequence mask; veRL's `geo_rs`.
    """
    of_rows = inputs.row_mean(inputs.proximal_logprob - inputs.old_logprob).exp().unsqueeze(-1)
    is_outside = ((of_rows < arguments.lower) | (of_rows > arguments.upper)).expand_as(inputs.logprob)
    return _weighted(inputs, arguments, (~is_outside).to(inputs.logprob.dtype), is_outside)


def dppo_tv(inputs: Inputs, arguments: DppoTvLoss) -> Result:
    """`-keep adv_tau A ratio + kl_tau log(ratio)^2`: a token is left out when its probability has already moved by more
    than a bound of total variation in the direction that its advantage asks for.

    `keep` is false where `A > 0` and `p - p_old > mask_high`, or `A <= 0` and `p - p_old < -mask_low`. Source:
    prime-rl's default loss.
    """
    log_ratio = (inputs.logprob - inputs.old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    moved = inputs.logprob.detach().exp() - inputs.old_logprob.exp()
    is_risen = (inputs.advantages > 0) & (moved > arguments.mask_high)
    is_fallen = (inputs.advantages <= 0) & (moved < -arguments.mask_low)
    is_masked = is_risen | is_fallen
    gains = arguments.adv_tau * inputs.advantages * log_ratio.exp() * ~is_masked
    loss = inputs.aggregate(arguments.kl_tau * log_ratio.square() - gains, arguments.agg_mode)
    metrics = {
        "pg_loss": loss,
        "pg_clipfrac": inputs.token_mean(is_masked),
        "ppo_kl": inputs.token_mean(-log_ratio),
        "tv_mask/risen": inputs.token_mean(is_risen),
        "tv_mask/fallen": inputs.token_mean(is_fallen),
    }
    return loss, metrics


def _behaviour_ratio(inputs: Inputs, level: Level) -> torch.Tensor:
    """The proximal policy's probability over the sampler's, `B x T`; of a sequence the product over its tokens."""
    if level == "token":
        return ratio_of(inputs.proximal_logprob, inputs.old_logprob)
    of_rows = inputs.row_sum(inputs.proximal_logprob - inputs.old_logprob).unsqueeze(-1)
    return ratio_of(of_rows, torch.zeros_like(of_rows)).expand_as(inputs.logprob)


def _weighted(inputs: Inputs, arguments: CorrectedLoss, weight: torch.Tensor, is_outside: torch.Tensor) -> Result:
    """PPO around the proximal policy, each token times its weight; tokens of weight 0 stay in the divisor."""
    ratio = ratio_of(inputs.logprob, inputs.proximal_logprob)
    found = surrogate(ratio, inputs.advantages, arguments.low, arguments.high, arguments.clip_ratio_c)
    loss = inputs.aggregate(found.losses * weight, arguments.agg_mode)
    extra = {
        "behaviour/kl": inputs.token_mean(inputs.old_logprob - inputs.proximal_logprob),
        "behaviour/weight": inputs.token_mean(weight),
        "behaviour/outside_frac": inputs.token_mean(is_outside),
    }
    return loss, clip_metrics(inputs, loss, found, inputs.logprob - inputs.old_logprob) | extra
