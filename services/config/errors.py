"""The one error of this package: a configuration that cannot run, with every problem that was found."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing to change: the dotted key, what is wrong and what to do, and where the value was written."""

    key: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.message}  ({self.where})" if self.where else self.message


class ConfigError(Exception):
    """A configuration is refused; `problems` holds all of them, `source` the file that was read."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{source}: {count}", *(f"  - {problem}" for problem in problems)]
        super().__init__("\n".join(lines))
