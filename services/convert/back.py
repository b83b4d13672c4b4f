"""From a configuration of ours to the overrides of veRL that train as it does."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from services.config.keys import get, is_under, joined, leaves, put
from services.config.load import Loaded
from services.convert.row import NOTHING, PPO, SFT, TRAINER_CONFIG, Row, spelled_out
from services.convert.spelled import override, place, quoted
from services.convert.table import TABLE

MODULES = {PPO: "verl.trainer.main_ppo", SFT: "verl.trainer.sft_trainer"}
INPUT = "buffer.explorer_input"
DECIDED_SFT = (
    "project",
    "name",
    "algorithm.algorithm_type",
    "algorithm.optimizer.lr",
    "buffer.train_batch_size",
    "buffer.total_epochs",
    "trainer.trainer_strategy",
    "trainer.use_dynamic_bsz",
    "monitor.monitor_type",
)
DECIDED = (
    "project",
    "name",
    "algorithm.algorithm_type",
    "algorithm.advantage_fn",
    "algorithm.repeat_times",
    "algorithm.kl_loss_fn",
    "algorithm.optimizer.lr",
    "buffer.batch_size",
    "buffer.total_epochs",
    "model.max_prompt_tokens",
    "model.max_response_tokens",
    "synchronizer.sync_interval",
    "trainer.trainer_strategy",
    "trainer.use_dynamic_bsz",
    "explorer.rollout_model.tensor_parallel_size",
    "explorer.rollout_model.gpu_memory_utilization",
    "monitor.monitor_type",
)
"""Keys whose value is told even where it was left open, since veRL would have another."""

ONLY_HERE: tuple[tuple[str, str], ...] = (
    ("synchronizer.*", "veRL's loop takes turns: nothing runs ahead"),
    ("explorer.rollout_model.engine_num", "veRL has as many engines as fit on its GPUs"),
    ("explorer.auxiliary_models*", "veRL asks a reward model alone: reward_model.model.path"),
    ("explorer.*", "explorers are veRL's rollout workers, which have no such key"),
    ("buffer.explorer_input.*workflow*", "workflows are agent loops in veRL, written for it"),
    ("buffer.explorer_input.*reward_fn*", "rewards are a custom_reward_function in veRL, written for it"),
    ("buffer.explorer_input.*", "veRL's data set has no such key"),
    ("buffer.trainer_input.*", "veRL trains on what it samples"),
    ("buffer.*", "veRL keeps no experiences"),
    ("data_processor.*", "veRL has no operators between sampling and training"),
    ("bus.*", "veRL has no bus"),
    ("algorithm.*", "veRL has no such part of an algorithm"),
    ("stages*", "veRL has one stage"),
    ("*", "veRL has no such key"),
)

LEFT_OF: dict[str, tuple[tuple[str, str], ...]] = {
    PPO: (),
    SFT: (
        ("*.experience_buffer.format.*", "veRL's SFT data are lists of messages: data.messages_key"),
        ("buffer.trainer_input.*", "veRL's SFT data set has no such key"),
        ("explorer.*", "an SFT run of veRL samples nothing"),
        ("synchronizer.*", "an SFT run of veRL samples nothing"),
    ),
}
"""Reasons of one kind of launch, which go before the others."""


@dataclass(frozen=True)
class Back:
    """The overrides, and our keys that veRL has no counterpart for, each with the reason."""

    module: str
    overrides: Mapping[str, Any]
    left: tuple[tuple[str, str], ...]

    def command(self) -> str:
        """A shell command, an override a line."""
        lines = [f"{self._starter()} -m {self.module}"]
        return " \\\n    ".join((*lines, *(override(key, value) for key, value in self.overrides.items())))

    def _starter(self) -> str:
        """torchrun for an SFT run: each of its GPUs has a process."""
        if self.module != MODULES[SFT]:
            return "python3"
        nodes, gpus = (self.overrides.get(f"trainer.{name}") for name in ("nnodes", "n_gpus_per_node"))
        return f"torchrun --nnodes={quoted(nodes or 1)} --nproc_per_node={quoted(gpus or 1)}"


class Mine:
    """A tree of ours that remembers which of its keys were asked for."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree
        self.asked: set[str] = set()

    def value(self, key: str, default: Any = None) -> Any:
        try:
            value = get(self.tree, key)
        except (KeyError, IndexError, TypeError):
            return default
        self.asked.add(key)
        return value

    def is_said(self, key: str) -> bool:
        return self.value(key, NOTHING) is not NOTHING

    def agreed(self, section: str, name: str, value: Any = NOTHING) -> Any:
        given = self.value(section)
        self.asked.discard(section)
        for number, entry in enumerate(given if isinstance(given, list) else []):
            try:
                own = get(entry, name)
            except (KeyError, IndexError, TypeError):
                own = NOTHING
            value = own if value is NOTHING and number == 0 else value
            if own is not NOTHING and own == value:
                self.asked.add(f"{section}[{number}].{name}")
        return value

    def count(self, key: str) -> int:
        value = self.value(key)
        self.asked.discard(key)
        return len(value) if isinstance(value, list) else 0


PLAIN: dict[str, tuple[tuple[str, str], ...]] = {
    PPO: (("synchronizer.sync_style", "fixed"), ("mode", "both"), ("trainer.trainer_type", "verl")),
    SFT: (
        ("mode", "train"),
        ("trainer.trainer_type", "verl"),
        ("buffer.trainer_input.experience_buffer.format.prompt_type", "messages"),
    ),
}
"""Values that are veRL's own way."""

SILENT = (
    "*.name",
    "*.storage_type",
    "*.format.response_key",
    "algorithm.algorithm_type",
    "explorer.rollout_model.engine_num",
)
"""Keys of which nothing needs to be said: veRL finds them out by itself, or has one word for both."""


def taken_back(loaded: Loaded) -> Back:
    """veRL's overrides for a configuration that passed its checks."""
    kind = SFT if loaded.config.algorithm.algorithm_type == "sft" else PPO
    return of_tree(_tree(loaded), kind)


def of_tree(tree: Mapping[str, Any], kind: str) -> Back:
    """veRL's overrides for a tree of our keys, as far as they have one."""
    mine = Mine(tree)
    overrides: dict[str, Any] = {}
    for row in TABLE:
        if kind in row.kinds:
            overrides |= {key: value for key, value in _of_row(row, mine) if key not in overrides}
    handed, homeless = _handed_on(mine, kind)
    overrides |= handed
    return Back(MODULES[kind], overrides, (*_left(mine, kind), *homeless))


def _tree(loaded: Loaded) -> dict[str, Any]:
    """What was given, with tasksets as a list, and what is told even where it was left open."""
    tree = loaded.given.model_dump(exclude_unset=True)
    resolved = loaded.config.model_dump()
    for key in DECIDED_SFT if loaded.config.algorithm.algorithm_type == "sft" else DECIDED:
        put(tree, key, get(resolved, key))
    given = tree.get("buffer", {}).get("explorer_input", {})
    if given.get("taskset"):
        given["tasksets"] = [given.pop("taskset")]
    _leave_to_the_environment(tree, loaded.source)
    return tree


def _leave_to_the_environment(tree: dict[str, Any], source: str) -> None:
    """Put texts back as they are in the file, where they name a variable of the environment."""
    for path, text in leaves(yaml.safe_load(Path(source).read_text(encoding="utf-8"))):
        if isinstance(text, str) and "${oc.env:" in text:
            key = joined(path).replace("explorer_input.taskset.", "explorer_input.tasksets[0].")
            with suppress(KeyError, IndexError, TypeError):
                get(tree, key)
                put(tree, key, text)


def _of_row(row: Row, mine: Mine) -> Iterator[tuple[str, Any]]:
    first = spelled_out(row.verl)[0]
    if row.way is None or "*" in first:
        return
    value = row.way.backward(first, mine)
    if value is not NOTHING and not (value is None and row.default is NOTHING):
        yield first, value


def _handed_on(mine: Mine, kind: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What stands below `trainer.trainer_config`, at the places where veRL reads it, and what has no place there."""
    handed: dict[str, Any] = {}
    homeless: list[tuple[str, str]] = []
    for path, value in leaves(mine.value(TRAINER_CONFIG.removesuffix(".")) or {}):
        key = joined(path)
        if not key or f"{TRAINER_CONFIG}{key}" in mine.asked:
            continue
        where = place(key, kind)
        if where is None:
            homeless.append((f"{TRAINER_CONFIG}{key}={value}", "veRL's SFT trainer has no such key"))
        else:
            handed[where] = value
    return handed, homeless


def _left(mine: Mine, kind: str) -> Iterator[tuple[str, str]]:
    made = mine.value("buffer.batch_size", 0) * mine.value("algorithm.repeat_times", 0)
    for path, value in leaves(mine.tree):
        key = joined(path)
        if (key, value) == ("buffer.train_batch_size", made):
            continue
        is_plain = any(fnmatchcase(key, pattern) for pattern in SILENT) or (key, value) in PLAIN[kind]
        is_told = is_plain or any(
            is_under(key, asked) for asked in mine.asked if asked != TRAINER_CONFIG.removesuffix(".")
        )
        if not key or is_told or value in (None, [], {}, "") or key.startswith(TRAINER_CONFIG):
            continue
        reason = next(words for pattern, words in (*LEFT_OF[kind], *ONLY_HERE) if fnmatchcase(key, pattern))
        yield f"{key}={value}", reason
