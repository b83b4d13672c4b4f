"""Which of a script's commands starts veRL, by which entry point, and what it says."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from services.convert.shell.state import Ran

Kind = Literal["ppo", "sft", "generation", "evaluation"]

ENTRY_POINTS: tuple[tuple[str, Kind], ...] = (
    (r"(.*\.)?(fsdp_)?sft_trainer(_ray)?", "sft"),
    (r"(.*\.)?main_generation(_server)?", "generation"),
    (r"(.*\.)?main_eval(uation)?", "evaluation"),
    (r"verl\.trainer\.main_ppo(_\w+)?", "ppo"),
    (r"(.*\.)?main_\w+", "ppo"),
    (r"(verl|recipe|examples)\..*\w*main\w*", "ppo"),
)
"""The modules behind `python -m` (or files, as dotted names), in the order in which they are tried."""

OWN = "verl.trainer."
_KEY = re.compile(r"(\+\+?|~)?[A-Za-z_][\w@/]*([.@/][\w@-]+)+=.*", re.DOTALL)
MIN_KEYS = 3


@dataclass(frozen=True)
class Launch:
    """A start of veRL: its entry point, its configuration's file, and its arguments from there on."""

    module: str
    kind: Kind
    arguments: tuple[str, ...]
    line: int
    config_path: str | None = None
    config_name: str | None = None
    nodes: str | None = None
    processes: str | None = None

    @property
    def is_veRLs_own(self) -> bool:
        """Whether the entry point is one of veRL itself, not of a recipe with a loop of its own."""
        return self.module.startswith(OWN)


def launches(commands: Iterable[Ran]) -> list[Launch]:
    """All starts of veRL among the commands of a script, in their order."""
    return [launch for command in commands for launch in _launch(command)]


def _launch(command: Ran) -> Iterator[Launch]:
    words = [word for word in command.words if word]
    found = _entry_point(words)
    if found is None:
        return
    place, module, kind = found
    before, after = words[:place], words[place + 1 :]
    options, keys = _options(after)
    yield Launch(
        module,
        kind,
        tuple(keys),
        command.line,
        options.get("--config-path") or options.get("-cp"),
        options.get("--config-name") or options.get("-cn"),
        _option(before, "--nnodes"),
        _option(before, "--nproc_per_node") or _option(before, "--nproc-per-node"),
    )


def _entry_point(words: Sequence[str]) -> tuple[int, str, Kind] | None:
    """The place of the module among the words, its name and its kind."""
    for place, word in enumerate(words):
        module = word if place and words[place - 1] == "-m" else _as_module(word)
        kind = _kind(module) if module else None
        if module and kind:
            return place, module, kind
    scripts = [place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1] == "-m"]
    if scripts and sum(_KEY.fullmatch(word) is not None for word in words) >= MIN_KEYS:
        return scripts[0], words[scripts[0]], "ppo"
    return None


def _as_module(word: str) -> str | None:
    """The dotted name of a Python file, from the last `verl` or `recipe` in its path on."""
    if not word.endswith(".py"):
        return None
    names = word.removesuffix(".py").strip("./").split("/")
    start = max((place for place, name in enumerate(names) if name in ("verl", "recipe", "examples")), default=0)
    return ".".join(names[start:])


def _kind(module: str) -> Kind | None:
    return next((kind for pattern, kind in ENTRY_POINTS if re.fullmatch(pattern, module)), None)


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of hydra with their values, and everything else up to a redirection or a pipe."""
    options: dict[str, str] = {}
    keys: list[str] = []
    waiting: str | None = None
    for word in words:
        if waiting is not None:
            options[waiting], waiting = word, None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            options[name] = value
            waiting = None if equals else name
        else:
            keys.append(word)
    return options, keys


def _option(words: Sequence[str], name: str) -> str | None:
    for place, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and place + 1 < len(words):
            return words[place + 1]
    return None
