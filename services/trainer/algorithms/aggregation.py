"""From values of tokens to one number, as a share of the whole optimizer batch."""

import torch

from services.trainer.algorithms.totals import Totals

MIN_COUNT = 1e-8
AGGREGATION_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregate(values: torch.Tensor, mask: torch.Tensor, mode: str, totals: Totals | None = None) -> torch.Tensor:
    """One scalar from `values` `B x T`, of which those under `mask` `B x T` count.

    `token-mean` is the mean over tokens; `seq-mean-token-sum` and `seq-mean-token-mean` the mean over rows of a row's
    sum or mean (a row without tokens is 0); `seq-mean-token-sum-norm` the sum over the length (Dr. GRPO, 2503.20783).
    With `totals` the result is these rows' share of the whole batch's value.

    Raises:
        ValueError: there is no such mode.
    """
    counts = totals or Totals.of(mask)
    weights = mask.to(values.dtype)
    kept = masked(values, mask) * weights
    if mode == "token-mean":
        return kept.sum() / (counts.tokens + MIN_COUNT)
    if mode == "seq-mean-token-sum":
        return kept.sum() / max(counts.sequences, 1)
    if mode == "seq-mean-token-mean":
        return (kept.sum(-1) / (weights.sum(-1) + MIN_COUNT)).sum() / max(counts.sequences, 1)
    if mode == "seq-mean-token-sum-norm":
        return kept.sum() / (counts.length + MIN_COUNT)
    raise ValueError(f"loss_agg_mode={mode!r} is not known: use one of {', '.join(AGGREGATION_MODES)}")


def masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` with 0 where the mask is 0, whatever stands there, and no gradient from there."""
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of each row over its mask, `B`; 0 for a row without tokens."""
    weights = mask.to(values.dtype)
    return (masked(values, mask) * weights).sum(-1) / (weights.sum(-1) + MIN_COUNT)


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` `B x T` with mean 0 and unbiased variance 1 over the mask; also beyond the mask, by the same numbers."""
    count = mask.sum()
    mean = masked(values, mask).sum() / (count + MIN_COUNT)
    variance = masked((values - mean).square(), mask).sum() / (count - 1).clamp(min=1)
    return (values - mean) * torch.rsqrt(variance + 1e-8)
