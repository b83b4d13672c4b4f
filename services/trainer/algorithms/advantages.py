"""Advantage functions. Each maps rewards of groups to one number per response."""

from collections.abc import Callable

import torch

Advantage = Callable[[torch.Tensor], torch.Tensor]


def grpo(epsilon: float = 1e-6, std_normalize: bool = True) -> Advantage:
    """Group-relative advantage: `(r - mean) / (std + epsilon)` within each group.

    Maps rewards `P x G` to advantages `P x G`; `std` is the unbiased one. A group of one has mean 0 and standard
    deviation 1. Source: DeepSeekMath (arXiv 2402.03300), section 4.1; without `std_normalize`, Dr. GRPO (2503.20783).
    """

    def advantages(rewards_P_G: torch.Tensor) -> torch.Tensor:
        if rewards_P_G.shape[-1] == 1:
            return rewards_P_G.clone()
        centred = rewards_P_G - rewards_P_G.mean(dim=-1, keepdim=True)
        if not std_normalize:
            return centred
        return centred / (rewards_P_G.std(dim=-1, keepdim=True) + epsilon)

    return advantages


ADVANTAGES: dict[str, Callable[..., Advantage]] = {"grpo": grpo}


def advantage(name: str, **arguments: object) -> Advantage:
    """The advantage function `name`.

    Raises:
        ValueError: there is none of that name, or it does not take these arguments.
    """
    if name not in ADVANTAGES:
        raise ValueError(f"advantage_fn={name!r} is not known: use one of {', '.join(sorted(ADVANTAGES))}")
    try:
        return ADVANTAGES[name](**arguments)
    except TypeError as error:
        raise ValueError(f"advantage_fn_args of {name!r}: {error}") from None
