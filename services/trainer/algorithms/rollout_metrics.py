"""What a rollout correction did to a whole batch, by veRL's names, less their prefix `rollout_corr/`."""

from dataclasses import dataclass

import torch

from services.config.rollout_correction import RolloutCorrection
from services.trainer.algorithms.aggregation import row_mean
from services.trainer.algorithms.rollout_correction import (
    Judged,
    Numbers,
    Weights,
    judged,
    kept,
    limits,
    normalizer,
    token_mean,
    vetoed,
    weights,
)


@dataclass(frozen=True)
class Corrected:
    """Weights `B x T` (None where none are asked for), the mask `B x T` that is left, and what was measured."""

    weights: torch.Tensor | None
    mask: torch.Tensor
    metrics: dict[str, float]


def corrected(log_ratio: torch.Tensor, mask: torch.Tensor, correction: RolloutCorrection) -> Corrected:
    """Weigh and mask a whole batch: `log_ratio` and `mask` `B x T`, as in `rollout_correction`."""
    found: torch.Tensor | None = None
    metrics: Numbers = {}
    is_measured = bool(mask.any())  # of no token there is nothing to tell
    if correction.rollout_is is not None:
        made = weights(log_ratio, mask, correction)
        found = made.applied
        metrics |= weight_metrics(made, mask, correction) if is_measured else {}
        if correction.rollout_is_batch_normalize:
            metrics["rollout_is_batch_norm_factor"] = normalizer(found, mask, correction)
            found = found / metrics["rollout_is_batch_norm_factor"]
    keep = kept(log_ratio, mask, correction)
    if is_measured:
        metrics |= _mask_metrics(log_ratio, mask, keep, correction)
    return Corrected(found, mask * keep, {name: float(value) for name, value in metrics.items()})


def weight_metrics(made: Weights, mask: torch.Tensor, correction: RolloutCorrection) -> Numbers:
    """Of importance weights before they are normalised."""
    lower, upper = correction.weight_bounds
    below, prefix = 1 / upper if lower is None else lower, "rollout_is"
    bounded = made.applied.clamp(0, upper)
    mean = token_mean(bounded, mask)
    share = (bounded / (mean + 1e-8)).square()
    of_rows, raw_of_rows = row_mean(made.applied, mask), row_mean(made.raw, mask)
    metrics = {
        f"{prefix}_mean": token_mean(made.applied, mask),
        f"{prefix}_std": _deviation(bounded, mask),
        f"{prefix}_eff_sample_size": 1 / token_mean(share, mask),
        f"{prefix}_seq_mean": of_rows.mean(),
        f"{prefix}_seq_std": of_rows.std() if len(of_rows) > 1 else torch.zeros(()),
        f"{prefix}_seq_max": of_rows.max(),
        f"{prefix}_seq_min": of_rows.min(),
        f"{prefix}_seq_max_deviation": (of_rows - 1).abs().max(),
        f"{prefix}_seq_fraction_high": _share(raw_of_rows > upper),
        f"{prefix}_seq_fraction_low": _share(raw_of_rows < below),
    }
    if lower is not None:
        metrics[f"{prefix}_oob_ratio"] = _share_of_tokens((made.raw < lower) | (made.raw > upper), mask)
    return metrics | (_extremes_of_rows if correction.rollout_is == "sequence" else _extremes)(made, mask, below, upper)


def _extremes(made: Weights, mask: torch.Tensor, below: float, upper: float) -> Numbers:
    counted = made.applied[mask > 0]
    return {
        "rollout_is_max": counted.max(),
        "rollout_is_min": counted.min(),
        "rollout_is_ratio_fraction_high": _share_of_tokens(made.raw > upper, mask),
        "rollout_is_ratio_fraction_low": _share_of_tokens(made.raw < below, mask),
    }


def _extremes_of_rows(made: Weights, mask: torch.Tensor, below: float, upper: float) -> Numbers:
    ratios = made.log_ratio
    return {
        "rollout_is_max": ratios.max().clamp(max=20).exp(),
        "rollout_is_min": ratios.min().exp(),
        "rollout_is_ratio_fraction_high": _share(ratios > torch.tensor(upper).log()),
        "rollout_is_ratio_fraction_low": _share(ratios < torch.tensor(below).log()),
    }


def _mask_metrics(
    log_ratio: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor, correction: RolloutCorrection
) -> Numbers:
    metrics: Numbers = {}
    threshold = correction.rollout_token_veto_threshold
    if threshold is not None:
        found = vetoed(log_ratio, mask, threshold)
        metrics["rollout_is_veto_fraction"] = _share(found.any(-1))
        metrics["rollout_is_catastrophic_token_fraction"] = _share_of_tokens(found, mask)
    for bound in correction.bounds:
        metrics |= _bound_metrics(judged(log_ratio, mask, bound), mask)
    if metrics:
        metrics["rollout_rs_masked_fraction"] = _share_of_tokens(~keep, mask)
        metrics["rollout_rs_seq_masked_fraction"] = _share((~keep & (mask > 0)).any(-1))
    return metrics


def _bound_metrics(found: Judged, mask: torch.Tensor) -> Numbers:
    """Of one option of `rollout_rs`, over all tokens and over the responses that have any."""
    name, (lower, upper) = f"rollout_rs_{found.bound.option}", limits(found.bound)
    has_tokens = mask.sum(-1) > 0
    every_row = row_mean(found.statistic, mask) if found.of_rows is None else found.of_rows
    rows, tokens = every_row[has_tokens], found.statistic[mask > 0]
    counted = tokens if found.of_rows is None else rows
    floor = torch.zeros(()) if lower is None else torch.tensor(lower)
    is_left_out = ~found.holds
    metrics = {
        f"{name}_mean": token_mean(found.statistic, mask),
        f"{name}_max": counted.max(),
        f"{name}_min": counted.min(),
        f"{name}_fraction_high": _share(counted > upper),
        f"{name}_fraction_low": torch.zeros(()) if lower is None else _share(counted < lower),
        f"{name}_std": _deviation(found.statistic.clamp(float(floor), upper), mask),
        f"{name}_seq_mean": rows.mean(),
        f"{name}_seq_std": rows.std() if len(rows) > 1 else torch.zeros(()),
        f"{name}_seq_max": rows.max(),
        f"{name}_seq_min": rows.min(),
        f"{name}_seq_max_deviation": rows.abs().max(),
        f"{name}_seq_fraction_high": _share(rows > upper),
        f"{name}_masked_fraction": _share_of_tokens(is_left_out, mask),
        f"{name}_seq_masked_fraction": _share((is_left_out & (mask > 0)).any(-1)[has_tokens]),
    }
    return metrics if lower is None else metrics | {f"{name}_seq_fraction_low": _share(rows < lower)}


def _deviation(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the population under the mask; 0 of a single token."""
    if mask.sum() <= 1:
        return torch.zeros(())
    mean = token_mean(values, mask)
    return (token_mean(values.square(), mask) - mean.square()).clamp(min=0).sqrt()


def _share(found: torch.Tensor) -> torch.Tensor:
    return found.float().mean()


def _share_of_tokens(found: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return token_mean(found.to(mask.dtype), mask)
