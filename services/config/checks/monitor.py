"""What must hold of the arguments of the monitor's record."""

from collections.abc import Callable, Iterator

from pydantic import ValidationError

from services.config.errors import Problem
from services.config.tree import RunConfig
from services.monitor.config import ARGUMENTS


def _arguments_are_the_records(config: RunConfig) -> Iterator[Problem]:
    kind = config.monitor.monitor_type
    if kind not in ARGUMENTS:
        return
    try:
        ARGUMENTS[kind].model_validate(config.monitor.monitor_args or {})
    except ValidationError as failure:
        for error in failure.errors(include_url=False):
            name = ".".join(str(part) for part in error["loc"])
            key = f"monitor.monitor_args.{name}"
            if error["type"] == "extra_forbidden":
                takes = ", ".join(ARGUMENTS[kind].model_fields)
                yield Problem(key, f"{key}: monitor_type={kind} has no such argument: it takes {takes}")
            else:
                yield Problem(key, f"{key}={error['input']!r}: {error['msg']}")


MONITOR_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_arguments_are_the_records,)
