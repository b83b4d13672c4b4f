"""What can go wrong between a row of a taskset and its experiences.

RolloutError
    UnknownName         no workflow, reward or selector of that name
    TasksetError        rows that cannot be read
    PluginError         a plug-in that cannot be imported
    PromptTooLong       more prompt tokens than allowed, and truncation is off: another try would not help
    EmptyResponse       the engine sampled no token
    EpisodeInvalid      a workflow returned what cannot be published: another try would not help
    AuxiliaryMissing    a workflow asks for an auxiliary model that is not configured: another try would not help
    TaskFailed          a task that could not be answered, with its last error
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class RolloutError(Exception):
    """The base of this package's errors."""


class UnknownName(RolloutError):
    """A name that is not in a table, with the nearest names that are, or the `reason` why it is of no use."""

    def __init__(self, kind: str, name: str, known: Iterable[str], reason: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"unknown {kind} {name!r}: {reason or nearest(name, known)}")


class TasksetError(RolloutError):
    """A taskset that cannot be read; the message names it."""

    def __init__(self, taskset: str, reason: str) -> None:
        self.taskset, self.reason = taskset, reason
        super().__init__(f"taskset {taskset!r}: {reason}")


class PluginError(RolloutError):
    """A plug-in that cannot be imported: a file, or a module by its dotted name."""

    def __init__(self, file: Path | str, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"plug-in {file}: {reason}")


class PromptTooLong(RolloutError):
    """A prompt over `max_prompt_tokens` where `enable_prompt_truncation` is off."""

    def __init__(self, prompt_tokens: int, max_prompt_tokens: int) -> None:
        self.prompt_tokens, self.max_prompt_tokens = prompt_tokens, max_prompt_tokens
        super().__init__(
            f"a prompt of {prompt_tokens} tokens, where max_prompt_tokens={max_prompt_tokens}: "
            "raise it, or set enable_prompt_truncation"
        )


class EmptyResponse(RolloutError):
    """A response without a token, which nothing can be learned from."""


class EpisodeInvalid(RolloutError):
    """A workflow's answer that is no experience, or of another position."""


class AuxiliaryMissing(RolloutError):
    """A workflow needs an auxiliary model that the run does not have."""

    def __init__(self, name: str | None, known: Iterable[str], kind: str = "an auxiliary model") -> None:
        self.name = name
        names = sorted(known)
        if name is None or not names:
            wanted = kind if name is None else f"the auxiliary model {name!r}"
            super().__init__(f"the workflow needs {wanted}: name it under explorer.auxiliary_models")
        else:
            super().__init__(f"explorer.auxiliary_models has no {name!r}: {nearest(name, names)}")


class TaskFailed(RolloutError):
    """A task of which one position could not be answered in `attempts` tries; `position` None means all of them."""

    def __init__(self, task_id: str, position: int | None, attempts: int, error: str) -> None:
        self.task_id, self.position, self.attempts, self.error = task_id, position, attempts, error
        tries = "1 try" if attempts == 1 else f"{attempts} tries"
        place = "all positions" if position is None else f"position {position}"
        super().__init__(f"task {task_id}, {place}: failed after {tries}: {error}")


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a wrong name: the right ones nearest to it, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known are {', '.join(map(repr, names))}" if names else "none is known"
