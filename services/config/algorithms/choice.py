"""What the configuration of a run says of its algorithm's parts: which ones, and with which arguments.

What the user gives goes before what the type sets, and that before the defaults of the part, key by key.
"""

from typing import Any

from services.config.algorithms.arguments import Arguments
from services.config.algorithms.parts import Kind, arguments
from services.config.tree import RunConfig

REINFORCE = "reinforce"


def part_of(config: RunConfig, kind: Kind) -> str:
    """The name of a part: the one that is given, else that of veRL's `loss_type`, else that of the type."""
    given = getattr(config.algorithm, kind)
    if given is None and kind == "policy_loss_fn" and asks_for_reinforce(config):
        return REINFORCE
    return str(getattr(config.algorithm_type, kind) if given is None else given)


def asks_for_reinforce(config: RunConfig) -> bool:
    """Whether veRL's rollout correction names the policy loss."""
    correction = config.algorithm.rollout_correction
    return correction is not None and correction.bypass_mode and correction.loss_type == REINFORCE


def compares_with_own_logprobs(config: RunConfig) -> bool:
    """Whether the trainer's own log-probs are computed before the update, as `rollout_correction` does it by itself."""
    correction, given = config.algorithm.rollout_correction, config.algorithm.bypass_old_logprobs
    return (correction is not None and not correction.bypass_mode) if given is None else not given


def arguments_of(config: RunConfig, kind: Kind) -> dict[str, Any] | None:
    """All arguments of a part with their values; None where the part or an argument is not known or not possible."""
    try:
        return checked_arguments(config, kind).complete()
    except ValueError:
        return None


def checked_arguments(config: RunConfig, kind: Kind) -> Arguments:
    """The arguments of a part; raises as `parts.arguments` does."""
    name = part_of(config, kind)
    is_of_type = name == getattr(config.algorithm_type, kind)
    set_by_type = config.algorithm_type.args.get(kind) if is_of_type else None
    return arguments(kind, name, set_by_type, _given(config, kind))


def agg_mode_of(config: RunConfig) -> str | None:
    """How the values of tokens become the loss; None where the policy loss cannot be read."""
    found = arguments_of(config, "policy_loss_fn")
    return None if found is None else str(found["loss_agg_mode"])


def _given(config: RunConfig, kind: Kind) -> dict[str, Any]:
    given: dict[str, Any] = dict(getattr(config.algorithm, f"{kind}_args") or {})
    mode = config.algorithm.loss_agg_mode
    if kind == "policy_loss_fn" and mode is not None:
        given["loss_agg_mode"] = mode
    return given
