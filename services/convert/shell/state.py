"""What a script has said so far: its variables, its arguments, and the commands that it would have run."""

import re
from dataclasses import dataclass, field

from services.convert.shell.grammar import Sequence

UNKNOWN = "\0"
"""Stands in a text for what only running a command would tell."""

MISSING = re.compile("\1(\\d+)\1")
"""Stands in a text for an argument of the script that is not given, with its number."""

ENVIRONMENT = re.compile(r"\$\{oc\.env:(\w+)\}")
ALWAYS_SET = ("HOME", "USER", "PWD", "PATH", "HOSTNAME", "SHELL", "TMPDIR")


def from_environment(name: str) -> str:
    """The text that stands for a variable which the script does not set."""
    return f"${{oc.env:{name}}}"


def missing(number: str) -> str:
    """The text that stands for an argument that is not given."""
    return f"\1{number}\1"


def is_unset(text: str) -> bool:
    """Whether a text is empty, but for variables that no one has set."""
    names = ENVIRONMENT.findall(text)
    return ENVIRONMENT.sub("", text) == "" and not any(name in ALWAYS_SET for name in names)


@dataclass(frozen=True)
class Ran:
    """A command that the script comes to, with its words expanded; `variables` as they were set for it."""

    words: tuple[str, ...]
    line: int


@dataclass
class State:
    """`remarks` are sentences on what could not be told without running something."""

    variables: dict[str, str | list[str] | dict[str, str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    functions: dict[str, Sequence] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    script: str = "script.sh"
    depth: int = 0

    def remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def text(self, name: str) -> str | None:
        """The text of a variable or an argument; None where it is not set."""
        if name.isdigit():
            number = int(name)
            if number == 0:
                return self.script
            return self.arguments[number - 1] if number <= len(self.arguments) else None
        value = self.variables.get(name)
        if isinstance(value, list | dict):
            return next(iter(self.texts(name)), None)
        return value

    def texts(self, name: str) -> list[str]:
        """All entries of an array; a plain variable is an array of one."""
        value = self.variables.get(name)
        if isinstance(value, list | dict):
            return list(value.values() if isinstance(value, dict) else value)
        return [] if value is None else [value]
