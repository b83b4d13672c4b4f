"""Online policy mirror descent: the simple loss, and the pairwise one."""

from services.config.algorithms.loss_arguments import OpmdLoss
from services.trainer.algorithms.inputs import Inputs, Result


def opmd(inputs: Inputs, arguments: OpmdLoss) -> Result:
    """`-A logprob / (1 + tau)`. Source: Trinity-RFT's OPMD note; the policy is kept near itself by `tau`."""
    loss = inputs.aggregate(-inputs.advantages * inputs.logprob, arguments.agg_mode) / (1 + arguments.tau)
    return loss, {"opmd_loss": loss}


def pairwise_opmd(inputs: Inputs, arguments: OpmdLoss) -> Result:
    """Squared differences of `r - tau (S - sg S)` within a group, `S` the sum of a row's log-probs.

    The sum over a group of `(diff - mean diff)^2`, with `diff_i = r_i - tau (S_i - sg S_i)`. Its value is the sum of
    `A_i^2`, `A_i = r_i - mean r`, and since the `A_i` of a group add up to 0, its gradient is that of the sum of
    `(A_i - tau (S_i - sg S_i))^2`. So rows need no company: the advantages passed in are `A`, and a group may be spread
    over micro-batches. Divided by `max(1, tau)` and, by default, by the number of tokens.
    """
    row_sums = inputs.row_sum(inputs.logprob)
    rises = row_sums - row_sums.detach()
    of_rows = (inputs.row_mean(inputs.advantages) - arguments.tau * rises).square() / max(1.0, arguments.tau)
    tokens = inputs.mask.sum(-1).clamp(min=1)
    loss = inputs.aggregate((of_rows / tokens).unsqueeze(-1).expand_as(inputs.logprob), arguments.agg_mode)
    return loss, {"opmd_loss": loss}
