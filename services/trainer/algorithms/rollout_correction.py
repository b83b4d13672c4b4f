"""Rollout correction: what a sampled token weighs under the trainer's policy, and which tokens are left out.

The same numbers as veRL 0.9.1's `rollout_corr_helper`. `log_ratio` `B x T` is the trainer's log-prob less that of the
sampler, `mask` `B x T` of its type is 1 on action tokens. Sources: veRL; Yao et al. 2025, "Your efficient RL framework
secretly brings you off-policy RL training"; IcePop, arXiv 2510.18855.
"""

import math
from dataclasses import dataclass

import torch

from services.config.rollout_correction import Bound, Estimator, RolloutCorrection
from services.trainer.algorithms.aggregation import MIN_COUNT, aggregate, masked, row_mean
from services.trainer.algorithms.inputs import MAX_LOG_RATIO
from services.trainer.algorithms.totals import Totals

Numbers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """Importance weights `B x T`, 0 beyond the mask. `raw` are the ratios, `applied` what the bounds make of them.

    `log_ratio` `B x T`, or `B x 1` where a response has one weight, is not kept within bounds.
    """

    raw: torch.Tensor
    applied: torch.Tensor
    log_ratio: torch.Tensor


@dataclass(frozen=True)
class Judged:
    """The statistic of one bound, `B x T`, and where it holds; `of_rows` `B` where it is a response's."""

    bound: Bound
    statistic: torch.Tensor
    holds: torch.Tensor
    of_rows: torch.Tensor | None


def weights(log_ratio: torch.Tensor, mask: torch.Tensor, correction: RolloutCorrection) -> Weights:
    """Of each token the ratio, or the product of its response's; cut off above, or 0 outside both bounds."""
    if correction.rollout_is == "sequence":
        log_ratio = (masked(log_ratio, mask) * mask).sum(-1, keepdim=True)
    raw = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(mask) * mask
    raw = masked(raw, mask)
    lower, upper = correction.weight_bounds
    if lower is None:
        return Weights(raw, raw.clamp(max=upper), log_ratio)
    return Weights(raw, raw * ((raw >= lower) & (raw <= upper)), log_ratio)


def normalizer(applied: torch.Tensor, mask: torch.Tensor, correction: RolloutCorrection) -> torch.Tensor:
    """The mean weight of the batch, over tokens or over responses with tokens; 1 where it vanishes."""
    if correction.rollout_is == "sequence":
        has_tokens = (mask.sum(-1) > 0).to(mask.dtype)
        mean = (row_mean(applied, mask) * has_tokens).sum() / has_tokens.sum().clamp(min=MIN_COUNT)
    else:
        mean = token_mean(applied, mask)
    return torch.where(mean > MIN_COUNT, mean, torch.ones_like(mean))


def judged(log_ratio: torch.Tensor, mask: torch.Tensor, bound: Bound) -> Judged:
    """One bound at every token. A response's statistic decides for all of its tokens."""
    per_token = _statistic(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), bound.estimator)
    if bound.scope == "token":
        return Judged(bound, per_token, _is_within(per_token, bound), None)
    of_rows = _of_rows(per_token, mask, bound)
    spread = of_rows.unsqueeze(-1).expand_as(mask)
    return Judged(bound, spread, _is_within(spread, bound), of_rows)


def vetoed(log_ratio: torch.Tensor, mask: torch.Tensor, threshold: float) -> torch.Tensor:
    """Where the ratio of an action token is below `threshold`, `B x T`: its whole response is to be left out."""
    return (log_ratio < math.log(threshold)) & (mask > 0)


def kept(log_ratio: torch.Tensor, mask: torch.Tensor, correction: RolloutCorrection) -> torch.Tensor:
    """Where every bound holds and no token vetoes the response, `B x T` bools."""
    found = torch.ones_like(mask, dtype=torch.bool)
    for bound in correction.bounds:
        found = found & judged(log_ratio, mask, bound).holds
    if correction.rollout_token_veto_threshold is not None:
        is_vetoed = vetoed(log_ratio, mask, correction.rollout_token_veto_threshold).any(-1, keepdim=True)
        found = found & ~is_vetoed
    return found


def at_update(
    log_ratio: torch.Tensor, mask: torch.Tensor, is_expert: torch.Tensor, correction: RolloutCorrection, totals: Totals
) -> tuple[torch.Tensor, Numbers]:
    """The weights of a part of a batch where the ratio is that of the policy under update (`bypass_mode`), and their
    metrics by veRL's names, as shares of the whole batch.

    Tokens that are left out have weight 0; rows where `is_expert` `B` have weight 1, for nobody sampled them.
    """
    sampled, count = mask * ~is_expert.unsqueeze(-1), totals.usual
    keep = kept(log_ratio, sampled, correction)
    is_left_out = (~keep & (sampled > 0)).to(mask.dtype)
    shares = {
        "rollout_rs_masked_fraction": aggregate(is_left_out, sampled, "token-mean", count),
        "rollout_rs_seq_masked_fraction": is_left_out.amax(-1).sum() / max(count.sequences, 1),
    }
    found = torch.ones_like(mask)
    if correction.rollout_is is not None:
        made = weights(log_ratio, sampled, correction)
        shares["rollout_is_mean"] = aggregate(made.applied, sampled, "token-mean", count)
        found = made.applied if correction.weights_count else found
    return torch.where(is_expert.unsqueeze(-1), torch.ones_like(mask), found * keep), shares


def limits(bound: Bound) -> tuple[float | None, float]:
    """The bounds of the statistic itself: those of `k1` are given as ratios."""
    if bound.estimator != "k1":
        return None, bound.upper
    assert bound.lower is not None
    return math.log(bound.lower), math.log(bound.upper)


def token_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the mask."""
    return (masked(values, mask) * mask).sum() / (mask.sum() + MIN_COUNT)


def _is_within(statistic: torch.Tensor, bound: Bound) -> torch.Tensor:
    lower, upper = limits(bound)
    is_below = statistic <= upper
    return is_below if lower is None else is_below & (statistic >= lower)


def _statistic(log_ratio: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def _of_rows(values: torch.Tensor, mask: torch.Tensor, bound: Bound) -> torch.Tensor:
    if bound.scope == "seq_mean":
        return row_mean(values, mask)
    if bound.scope == "seq_sum":
        return (masked(values, mask) * mask).sum(-1)
    return masked(values, mask).amax(-1)  # k2 and k3 are 0 or more
