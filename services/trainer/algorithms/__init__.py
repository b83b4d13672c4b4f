"""Advantages, policy losses and KL terms: functions of tensors, chosen by name in visible tables."""

from services.trainer.algorithms.advantages import (
    Advantage,
    EpisodeAdvantage,
    GroupAdvantage,
    TokenAdvantage,
    advantage,
)
from services.trainer.algorithms.aggregation import aggregate
from services.trainer.algorithms.divergence import Kl, adapted_kl_coef, kl
from services.trainer.algorithms.entropy import entropy_mask
from services.trainer.algorithms.episode_advantages import Episodes
from services.trainer.algorithms.losses import PolicyLoss, policy_loss
from services.trainer.algorithms.token_advantages import Estimates, TokenInputs
from services.trainer.algorithms.totals import Totals

__all__ = [
    "Advantage",
    "EpisodeAdvantage",
    "Episodes",
    "Estimates",
    "GroupAdvantage",
    "Kl",
    "PolicyLoss",
    "TokenAdvantage",
    "TokenInputs",
    "Totals",
    "adapted_kl_coef",
    "advantage",
    "aggregate",
    "entropy_mask",
    "kl",
    "policy_loss",
]
