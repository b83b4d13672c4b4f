"""Which tokens an entropy bonus counts."""

import torch

from services.config.algorithms.parts import known


def entropy_mask(name: str, action_mask: torch.Tensor, expert_mask: torch.Tensor | None) -> torch.Tensor:
    """The mask `B x T` of the entropy term: `default` all actions, `mix` those of usual rows, `none` nothing.

    With `mix`, aggregate by `totals.usual`.

    Raises:
        ValueError: there is none of that name, or `mix` without an `expert_mask` `B`.
    """
    known("entropy_loss_fn", name)
    if name == "none":
        return torch.zeros_like(action_mask)
    if name == "default":
        return action_mask
    if expert_mask is None:
        raise ValueError("entropy_loss_fn=mix leaves expert rows out: pass expert_mask")
    return action_mask * (~expert_mask.bool()).unsqueeze(-1).to(action_mask.dtype)
