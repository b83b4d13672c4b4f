"""What the configuration of a run says of its algorithm's parts: which ones, and with which arguments.

What the user gives goes before what the type sets, and that before the defaults of the part, key by key.
"""

from typing import Any

from services.config.algorithm_parts import Kind, arguments
from services.config.arguments import Arguments
from services.config.tree import RunConfig


def part_of(config: RunConfig, kind: Kind) -> str:
    """The name of a part: the one that is given, else that of the type."""
    given = getattr(config.algorithm, kind)
    return str(getattr(config.algorithm_type, kind) if given is None else given)


def arguments_of(config: RunConfig, kind: Kind) -> dict[str, Any] | None:
    """All arguments of a part with their values; None where the part or an argument is not known or not possible."""
    try:
        return checked_arguments(config, kind).complete()
    except ValueError:
        return None


def checked_arguments(config: RunConfig, kind: Kind) -> Arguments:
    """The arguments of a part; raises as `algorithm_parts.arguments` does."""
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
