"""The sampler held against the trainer at the start of a batch, and what a rollout correction makes of it."""

from collections.abc import Sequence as Rows
from dataclasses import replace

import numpy as np
import torch

from services.config.rollout_correction import RolloutCorrection
from services.trainer.algorithms.gap import completed, gap, whole
from services.trainer.algorithms.rollout_metrics import Corrected, corrected
from services.trainer.algorithms.totals import Totals
from services.trainer.backends.port import Floats, Sequence
from services.trainer.padding import padded, unpadded

Compared = tuple[list[Sequence], dict[str, float]]


def compared(rows: Rows[Sequence], own: Rows[Floats], correction: RolloutCorrection | None) -> Compared:
    """The sequences with the weights and the action mask of the correction, and the metrics of both by veRL's names.

    `own` are the trainer's log-probs of each response token. Expert rows, which nobody sampled, are left as they are.
    """
    sampled = [place for place, row in enumerate(rows) if not row.is_expert]
    if not sampled:
        return list(rows), {}
    logprob = padded([own[place] for place in sampled])
    old = padded([rows[place].old_logprobs for place in sampled])
    mask = padded([rows[place].action_mask for place in sampled])
    metrics = completed(whole(gap(logprob, old, mask, Totals.of(mask))), float(mask.sum()))
    if correction is None:
        return list(rows), metrics
    found = corrected(logprob - old, mask, correction)
    metrics |= {f"rollout_corr/{name}": value for name, value in found.metrics.items()}
    return _applied(rows, sampled, found), metrics


def _applied(rows: Rows[Sequence], sampled: Rows[int], found: Corrected) -> list[Sequence]:
    done, lengths = list(rows), [rows[place].response_length for place in sampled]
    masks = unpadded(found.mask, lengths)
    for place, mask in zip(sampled, masks, strict=True):
        done[place] = replace(done[place], action_mask=mask.astype(np.uint8))
    if found.weights is None:
        return done
    weights = dict(zip(sampled, unpadded(found.weights.to(torch.float32), lengths), strict=True))
    ones = {place: np.ones(row.response_length, np.float32) for place, row in enumerate(rows)}
    return [replace(row, weights=(ones | weights)[place]) for place, row in enumerate(done)]
