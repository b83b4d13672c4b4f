"""How far the trainer's policy is from the sampler's on the tokens that were sampled, by veRL's names.

Every mean is a share of the whole batch, so the shares of micro-batches and ranks add up; extremes are those of all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from services.trainer.algorithms.aggregation import aggregate, masked, row_mean
from services.trainer.algorithms.inputs import MAX_LOG_RATIO
from services.trainer.algorithms.totals import Totals

SQUARES = "training/rollout_probs_diff_square"
DEVIATION = "training/rollout_probs_diff_std"
_MEAN = "training/rollout_probs_diff_mean"


@dataclass(frozen=True)
class Gap:
    """`shares` of means add up over the parts of a batch; of `maxima` and `minima` the outermost counts."""

    shares: dict[str, torch.Tensor]
    maxima: dict[str, torch.Tensor]
    minima: dict[str, torch.Tensor]


@torch.no_grad()
def gap(logprob: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, totals: Totals) -> Gap:
    """Between the trainer's log-probs and the sampler's, `B x T` under `mask`; the sampled tokens are the sampler's.

    `kl`, `k3_kl` estimate KL(sampler || trainer), `chi2_*` the chi-square divergence, `*_ppl` perplexities; the
    differences of log-probs and of probabilities are absolute.
    """
    logprob, sampled = masked(logprob, mask), masked(sampled, mask)
    log_ratio = logprob - sampled
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    moved = (logprob.exp() - sampled.exp()).abs()
    trained, rolled = row_mean(logprob, mask), row_mean(sampled, mask)
    product = log_ratio.sum(-1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    of_tokens = {
        "rollout/logprob_diff": log_ratio.abs(),
        "rollout_corr/kl": -log_ratio,
        "rollout_corr/k3_kl": bounded.exp() - 1 - log_ratio,
        "rollout_corr/chi2_token": bounded.exp().square() - 1,
        _MEAN: moved,
        SQUARES: moved.square(),
    }
    of_rows = {
        "rollout_corr/training_ppl": (-trained).exp(),
        "rollout_corr/training_log_ppl": -trained,
        "rollout_corr/rollout_ppl": (-rolled).exp(),
        "rollout_corr/rollout_log_ppl": -rolled,
        "rollout_corr/log_ppl_diff": rolled - trained,
        "rollout_corr/log_ppl_abs_diff": (rolled - trained).abs(),
        "rollout_corr/ppl_ratio": (rolled - trained).exp(),
        "rollout_corr/chi2_seq": (2 * product).exp() - 1,
    }
    return Gap(
        shares={name: aggregate(values, mask, "token-mean", totals) for name, values in of_tokens.items()}
        | {name: values.sum() / max(totals.sequences, 1) for name, values in of_rows.items()},
        maxima={
            "rollout/logprob_diff_max": _largest(log_ratio.abs()),
            "training/rollout_probs_diff_max": _largest(moved),
            "rollout_corr/log_ppl_diff_max": _largest(rolled - trained),
        },
        minima={"rollout_corr/log_ppl_diff_min": -_largest(trained - rolled)},
    )


def whole(found: Gap) -> dict[str, float]:
    """The metrics of a batch that is not parted."""
    return numbers(found.shares | found.maxima | found.minima)


def numbers(scalars: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The values of scalars on one device, read at once."""
    values = torch.stack([each.to(torch.float32) for each in scalars.values()]).tolist() if scalars else []
    return dict(zip(scalars, values, strict=True))


def completed(metrics: dict[str, float], tokens: float) -> dict[str, float]:
    """With the deviation in place of the mean square that it is made of, and without extremes of nothing.

    `tokens` is the number of action tokens of the batch.
    """
    done = {name: value for name, value in metrics.items() if name != SQUARES and math.isfinite(value)}
    if SQUARES in metrics:
        variance = max(metrics[SQUARES] - metrics[_MEAN] ** 2, 0.0)
        done[DEVIATION] = math.sqrt(variance * tokens / max(tokens - 1, 1))
    return done


def _largest(values: torch.Tensor) -> torch.Tensor:
    """Minus infinity of nothing, such as a micro-batch that holds no sampled row."""
    return values.max() if values.numel() else values.new_tensor(-torch.inf)
