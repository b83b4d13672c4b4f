"""Advantages that differ from token to token: from a critic, from returns, or from a teacher."""

from dataclasses import dataclass, field

import torch

from services.config.algorithms.advantage_arguments import (
    DistillAdvantage,
    GaeAdvantage,
    JsdAdvantage,
    NoArguments,
    ReturnAdvantage,
)
from services.trainer.algorithms.aggregation import whitened


@dataclass(frozen=True)
class TokenInputs:
    """A batch of `B` padded responses of `T` tokens; all tensors are `B x T` unless said otherwise.

    `token_rewards` is the score on the last action token less the KL penalty of each; `action_mask` floats, `groups`
    `B` ints that are equal within a task. The rest where an advantage asks for it: the critic's `values`, the sampler's
    `old_logprob`, a teacher's, the policy's `entropy`, its `nec` (the mean over the vocabulary of
    `p (H + log p)`), and `baselines` `B`: the rewards of greedy answers to the same tasks.
    """

    token_rewards: torch.Tensor
    action_mask: torch.Tensor
    groups: torch.Tensor
    values: torch.Tensor | None = None
    old_logprob: torch.Tensor | None = None
    teacher_logprob: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    nec: torch.Tensor | None = None
    baselines: torch.Tensor | None = None

    def read(self, name: str) -> torch.Tensor:
        """The tensor of that name; ValueError where it was not given."""
        value: torch.Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"the advantage reads {name}: pass it")
        return value


@dataclass(frozen=True)
class Estimates:
    """Advantages and returns `B x T`, and the mask of the tokens to learn from; metrics of the whole batch.

    Beyond the mask, advantages and returns mean nothing.
    """

    advantages: torch.Tensor
    returns: torch.Tensor
    action_mask: torch.Tensor
    metrics: dict[str, float] = field(default_factory=dict)


def ppo(inputs: TokenInputs, arguments: GaeAdvantage) -> Estimates:
    """Generalized advantage estimation, whitened over the batch; returns are the unwhitened ones plus the values.

    `delta_t = r_t + gamma V_(t+1) - V_t`, `A_t = delta_t + gamma lam A_(t+1)`, over all `T` columns: give values of 0
    beyond the response. Source: arXiv 1506.02438.
    """
    values = inputs.read("values")
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=-1)
    deltas = inputs.token_rewards + arguments.gamma * following - values
    advantages = _discounted(deltas, arguments.gamma * arguments.lam)
    return Estimates(whitened(advantages, inputs.action_mask), advantages + values, inputs.action_mask)


def reinforceplusplus(inputs: TokenInputs, arguments: ReturnAdvantage) -> Estimates:
    """The return from each token on, whitened over the batch. Source: arXiv 2501.03262."""
    returns = _discounted(inputs.token_rewards, arguments.gamma)
    advantages = whitened(returns, inputs.action_mask) * inputs.action_mask
    return Estimates(advantages, returns, inputs.action_mask)


def remax(inputs: TokenInputs, arguments: NoArguments) -> Estimates:
    """The return from each token on, less the reward of a greedy answer. Source: arXiv 2310.10505."""
    mask = inputs.action_mask
    returns = _discounted(inputs.token_rewards * mask, 1.0)
    return Estimates(returns - inputs.read("baselines").unsqueeze(-1) * mask, returns, mask)


def on_policy_distill(inputs: TokenInputs, arguments: DistillAdvantage) -> Estimates:
    """`kl_coef (teacher - old)`: the negative reverse KL of each sampled token."""
    gap = inputs.read("teacher_logprob") - inputs.read("old_logprob")
    return _distilled(inputs, arguments.kl_coef * gap, -gap, "kl")


def jsd(inputs: TokenInputs, arguments: JsdAdvantage) -> Estimates:
    """`-kl_coef` times the generalized Jensen-Shannon divergence at each sampled token.

    With `m = log((1 - b) student + b teacher)` and `b = lambda_coef`: `b (teacher - m) + (1 - b) (student - m)`; at
    `b = 0` `student - teacher`, at 1 `teacher - student`. Log-probs are first divided by `temperature`. `chunk_size`
    bounds how many tokens are worked on at once. Source: generalized knowledge distillation, arXiv 2306.13649.
    """
    teacher = inputs.read("teacher_logprob") / arguments.temperature
    student = inputs.read("old_logprob") / arguments.temperature
    size = arguments.chunk_size or max(1, student.numel())
    pairs = zip(torch.split(student.reshape(-1), size), torch.split(teacher.reshape(-1), size), strict=True)
    chunks = [_divergence(s, t, arguments.lambda_coef) for s, t in pairs]
    divergence = torch.cat(chunks).reshape_as(student)
    return _distilled(inputs, -arguments.kl_coef * divergence, divergence, "jsd")


def _divergence(student: torch.Tensor, teacher: torch.Tensor, share: float) -> torch.Tensor:
    if share == 0:
        return student - teacher
    if share == 1:
        return teacher - student
    logs = torch.tensor([1 - share, share], dtype=student.dtype, device=student.device).log()
    mixture = torch.logaddexp(student + logs[0], teacher + logs[1])
    return share * (teacher - mixture) + (1 - share) * (student - mixture)


def _distilled(inputs: TokenInputs, advantages: torch.Tensor, distances: torch.Tensor, name: str) -> Estimates:
    mask = inputs.action_mask
    masked_advantages = advantages * mask
    of_rows = (distances * mask).sum(-1)
    metrics = {
        f"{name}/mean": float(of_rows.mean()),
        f"{name}/std": float(of_rows.std()) if len(of_rows) > 1 else 0.0,
        "advantages/mean": float(masked_advantages.sum(-1).mean()),
    }
    return Estimates(masked_advantages, masked_advantages, mask, metrics)


def _discounted(values: torch.Tensor, gamma: float) -> torch.Tensor:
    """`G_t = v_t + gamma G_(t+1)` along the last axis."""
    if gamma == 1.0:
        return values.flip(-1).cumsum(-1).flip(-1)
    returns, ahead = torch.empty_like(values), torch.zeros_like(values[:, 0])
    for column in reversed(range(values.shape[-1])):
        ahead = values[:, column] + gamma * ahead
        returns[:, column] = ahead
    return returns
