"""Direct preference optimization on pairs of rows."""

import torch
from torch.nn.functional import logsigmoid

from services.config.algorithms.loss_arguments import DpoLoss
from services.trainer.algorithms.inputs import Inputs, Result


def dpo(inputs: Inputs, arguments: DpoLoss) -> Result:
    """The mean over pairs of `-logsigmoid(beta margin)`; even rows are chosen, each odd one rejected for it.

    The margin of a pair is how much more its chosen row has gained on the reference policy than its rejected one, in
    nats of the whole response. `label_smoothing` is the probability that a pair is the wrong way round.
    Source: arXiv 2305.18290; conservative DPO for the smoothing.

    Raises:
        ValueError: the number of rows is odd.
    """
    if len(inputs.logprob) % 2:
        raise ValueError(f"dpo got {len(inputs.logprob)} rows: give pairs, each chosen row before its rejected one")
    gains = inputs.row_sum(inputs.logprob - inputs.ref_logprob)
    chosen, rejected = gains[::2], gains[1::2]
    logits = arguments.beta * (chosen - rejected)
    smoothing = arguments.label_smoothing
    losses = -logsigmoid(logits) * (1 - smoothing) - logsigmoid(-logits) * smoothing
    loss = _pair_mean(inputs, losses)
    metrics = {
        "dpo_loss": loss,
        "chosen_reward": _pair_mean(inputs, arguments.beta * chosen),
        "rejected_reward": _pair_mean(inputs, arguments.beta * rejected),
        "accuracy_mean": _pair_mean(inputs, (chosen > rejected).to(gains.dtype)),
    }
    return loss, metrics


def _pair_mean(inputs: Inputs, values: torch.Tensor) -> torch.Tensor:
    return 2 * inputs.sequence_mean(values)
