"""GRPO that leaves out the tokens which would move the policy's entropy most (arXiv 2602.03392)."""

import torch

from services.config.algorithms.advantage_arguments import ClipBAdvantage, ClipVAdvantage
from services.trainer.algorithms.statistics import statistics
from services.trainer.algorithms.token_advantages import Estimates, TokenInputs

MIN_DEVIATION = 1e-12
CHUNK = 2**24


def clipb(inputs: TokenInputs, arguments: ClipBAdvantage) -> Estimates:
    """Leaves out tokens of negative advantage whose `p (H + log p)` lies more than `mu` deviations below the mean."""
    advantages = _grpo(inputs, arguments.epsilon)
    signal = _signal(inputs)
    mean, std = _population(signal, inputs.action_mask)
    is_left_out = (advantages < 0) & (signal - mean < -arguments.mu * std)
    if float(std) < MIN_DEVIATION:
        is_left_out = torch.zeros_like(is_left_out)
    estimates = _estimates(inputs, advantages, is_left_out)
    estimates.metrics.update({"ES": float(mean), "varS": float(std.square())})
    return estimates


def clipv(inputs: TokenInputs, arguments: ClipVAdvantage) -> Estimates:
    """Leaves out tokens without positive advantage whose `nec - p (H + log p)` is above `mu` deviations.

    No more than `max_frac` of all tokens (but one at least) of negative advantage: those where it is largest.
    """
    advantages = _grpo(inputs, arguments.epsilon)
    distance = inputs.read("nec") - _signal(inputs)
    _, std = _population(distance, inputs.action_mask)
    is_far = (distance > arguments.mu * std) & (inputs.action_mask > 0) & (advantages <= 0)
    if float(std) < MIN_DEVIATION:
        is_far = torch.zeros_like(is_far)
    tokens = max(float(inputs.action_mask.sum()), 1.0)
    most = max(int(arguments.max_frac * tokens), 1)
    is_left_out = is_far
    if float(is_far.sum()) / tokens > arguments.max_frac:
        is_left_out = _largest(distance, is_far & (advantages < 0), most) | (is_far & (advantages == 0))
    estimates = _estimates(inputs, advantages, is_left_out)
    estimates.metrics["stdD"] = float(std)
    return estimates


@torch.no_grad()
def nec(logits: torch.Tensor, chunk: int = CHUNK) -> torch.Tensor:
    """The mean over the vocabulary of `p (H + log p)`, float32 `N`, of logits `N x V` that are not normalised.

    `sum p^2 (H + log p)`, what a token drawn from the policy itself would have on average. Works on at most `chunk`
    elements at once, but on one token at least.
    """
    rows = torch.split(logits, max(1, chunk // logits.shape[-1]))
    return torch.cat([_nec(each.float()) for each in rows])


def _nec(logits: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(logits, dim=-1)
    parts = torch.special.entr(p)  # -p log p, and 0 where p is
    mean: torch.Tensor = p.square().sum(-1) * parts.sum(-1) - (p * parts).sum(-1)
    return mean


def _grpo(inputs: TokenInputs, epsilon: float) -> torch.Tensor:
    rewards = inputs.token_rewards.sum(-1)
    found = statistics(rewards, inputs.groups)
    return ((rewards - found.mean) / (found.std + epsilon)).unsqueeze(-1) * inputs.action_mask


def _signal(inputs: TokenInputs) -> torch.Tensor:
    """How much a token's gradient raises the entropy, to first order: `p (H + log p)`."""
    logprob = inputs.read("old_logprob")
    return logprob.exp() * (inputs.read("entropy") + logprob)


def _population(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = mask.sum().clamp(min=1)
    mean = (values * mask).sum() / count
    return mean, (((values - mean).square() * mask).sum() / count).sqrt()


def _largest(values: torch.Tensor, candidates: torch.Tensor, most: int) -> torch.Tensor:
    """The candidates with the `most` largest values."""
    count = min(most, int(candidates.sum()))
    chosen = torch.zeros(candidates.numel(), dtype=torch.bool, device=values.device)
    chosen[values.masked_fill(~candidates, -torch.inf).reshape(-1).topk(count).indices] = True
    return chosen.reshape_as(candidates)


def _estimates(inputs: TokenInputs, advantages: torch.Tensor, is_left_out: torch.Tensor) -> Estimates:
    mask = inputs.action_mask
    left_out = is_left_out * mask
    shares = {
        "frac_clipped": mask,
        "frac_clipped_pos": mask * (advantages > 0),
        "frac_clipped_neg": mask * (advantages < 0),
    }
    metrics = {name: float((left_out * among).sum() / among.sum().clamp(min=1)) for name, among in shares.items()}
    return Estimates(advantages, advantages, mask * ~is_left_out, metrics)
