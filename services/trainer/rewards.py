"""Rewards per token: the score on the last action token, less a KL penalty on every action token."""

from collections.abc import Sequence as Rows

import numpy as np
import torch

from services.trainer.algorithms.divergence import Kl, adapted_kl_coef
from services.trainer.backends.port import Floats, Sequence


class KlCoefficient:
    """The coefficient of a KL term. With a target it follows the measured KL, step by step."""

    def __init__(self, coef: float, target_kl: float | None = None, horizon: float = 10_000.0) -> None:
        self.value = coef
        self._target_kl = target_kl
        self._horizon = horizon

    def follow(self, current_kl: float, batch_size: int) -> None:
        """Move towards the target after a batch of `batch_size` sequences whose KL was `current_kl`."""
        if self._target_kl is not None:
            self.value = adapted_kl_coef(self.value, current_kl, self._target_kl, self._horizon, batch_size)


def token_rewards(sequences: Rows[Sequence], penalties: Rows[Floats] | None = None) -> list[Floats]:
    """`score on the last action token - penalty`: for each sequence a number per response token.

    A sequence without an action token has its score on the last token.
    """
    rewards = []
    for row, sequence in enumerate(sequences):
        each = np.zeros(sequence.response_length, dtype=np.float32)
        if penalties is not None:
            each -= penalties[row]
        each[_last_action(sequence)] += np.float32(sequence.reward)
        rewards.append(each)
    return rewards


def kl_of_actions(sequences: Rows[Sequence], kl: Kl) -> list[Floats]:
    """The KL from the reference policy, `kl(old, reference)`, of each action token; 0 elsewhere."""
    found = []
    for sequence in sequences:
        if sequence.reference_logprobs is None:
            raise ValueError("a KL penalty needs the reference policy's log-probs")
        old = torch.tensor(sequence.old_logprobs)[None]
        per_token = kl(old, torch.tensor(sequence.reference_logprobs)[None], old)[0].numpy()
        found.append((per_token * sequence.action_mask).astype(np.float32))
    return found


def mean_kl(sequences: Rows[Sequence], kl: Rows[Floats]) -> float:
    """Mean over sequences of the mean over their action tokens."""
    means = [
        float(each.sum(dtype=np.float64)) / max(int(sequence.action_mask.sum()), 1)
        for sequence, each in zip(sequences, kl, strict=True)
    ]
    return sum(means) / len(means)


def _last_action(sequence: Sequence) -> int:
    actions = np.flatnonzero(sequence.action_mask)
    return int(actions[-1]) if len(actions) else sequence.response_length - 1
