"""A configuration as it may be shown to others: on the bus, and on a tracking server."""

import re
from typing import Any

from services.config.tree import RunConfig
from services.monitor.config import SECRETS

HIDDEN = "***"
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def shareable(config: RunConfig) -> dict[str, Any]:
    """All keys in plain values, without the monitor's secrets and the passwords in addresses."""
    plain: dict[str, Any] = _without_passwords(config.model_dump(mode="json"))
    given = plain["monitor"]["monitor_args"] or {}
    for key in SECRETS:
        if given.get(key):
            given[key] = HIDDEN
    return plain


def _without_passwords(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_passwords(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without_passwords(value) for value in tree]
    return _PASSWORD.sub(rf"\1:{HIDDEN}@", tree) if isinstance(tree, str) else tree
