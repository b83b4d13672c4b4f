"""Losses of supervised fine-tuning: the likelihood, and two that weigh tokens by how likely they are already."""

import math

from services.config.algorithms.loss_arguments import SftLoss, SftPhiLoss
from services.trainer.algorithms.inputs import Inputs, Result


def sft(inputs: Inputs, arguments: SftLoss) -> Result:
    """`-logprob`."""
    loss = inputs.aggregate(-inputs.logprob, arguments.agg_mode)
    return loss, {"sft_loss": loss}


def sft_is(inputs: Inputs, arguments: SftLoss) -> Result:
    """`-sg(p) logprob`, the likelihood weighed by the token's own probability (arXiv 2508.05629)."""
    loss = inputs.aggregate(-inputs.logprob.detach().exp() * inputs.logprob, arguments.agg_mode)
    return loss, {"sft_is_loss": loss}


def sft_phi(inputs: Inputs, arguments: SftPhiLoss) -> Result:
    """`-sg(p (1 - p)) logprob`: tokens that are certain or hopeless weigh little (CHORD, arXiv 2508.11408).

    Tokens above `cutoff_prob` are held at its logarithm, so that they give no gradient.
    """
    probability = inputs.logprob.detach().exp()
    logprob = inputs.logprob
    if arguments.cutoff_prob < 1:
        logprob = logprob.clamp(max=math.log(arguments.cutoff_prob))
    loss = inputs.aggregate(-probability * (1 - probability) * logprob, arguments.agg_mode)
    return loss, {"sft_phi_loss": loss}
