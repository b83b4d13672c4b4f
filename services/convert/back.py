"""From a configuration of ours to the overrides of veRL that train as it does."""

import re
import shlex
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
from services.convert.table import TABLE
from services.convert.writing import short

MODULES = {PPO: "verl.trainer.main_ppo", SFT: "verl.trainer.sft_trainer"}
INPUT = "buffer.explorer_input"
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


@dataclass(frozen=True)
class Back:
    """The overrides, and our keys that veRL has no counterpart for, each with the reason."""

    module: str
    overrides: Mapping[str, Any]
    left: tuple[tuple[str, str], ...]

    def command(self) -> str:
        """A shell command, an override a line."""
        lines = [f"python3 -m {self.module}", *(f"{key}={quoted(value)}" for key, value in self.overrides.items())]
        return " \\\n    ".join(lines)


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

    def count(self, key: str) -> int:
        value = self.value(key)
        self.asked.discard(key)
        return len(value) if isinstance(value, list) else 0


PLAIN = (("synchronizer.sync_style", "fixed"), ("mode", "both"), ("trainer.trainer_type", "verl"))
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
    overrides |= _handed_on(mine, kind)
    return Back(MODULES[kind], overrides, tuple(_left(mine)))


def _tree(loaded: Loaded) -> dict[str, Any]:
    """What was given, with tasksets as a list, and what is told even where it was left open."""
    tree = loaded.given.model_dump(exclude_unset=True)
    resolved = loaded.config.model_dump()
    for key in DECIDED:
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


def _handed_on(mine: Mine, kind: str) -> dict[str, Any]:
    """What stands below `trainer.trainer_config` under veRL's own names."""
    tree = mine.value(TRAINER_CONFIG.removesuffix(".")) or {}
    if kind == SFT:
        return {}
    return {joined(path): value for path, value in leaves(tree) if path}


def _left(mine: Mine) -> Iterator[tuple[str, str]]:
    made = mine.value("buffer.batch_size", 0) * mine.value("algorithm.repeat_times", 0)
    for path, value in leaves(mine.tree):
        key = joined(path)
        if (key, value) == ("buffer.train_batch_size", made):
            continue
        is_plain = any(fnmatchcase(key, pattern) for pattern in SILENT) or (key, value) in PLAIN
        is_told = is_plain or any(
            is_under(key, asked) for asked in mine.asked if asked != TRAINER_CONFIG.removesuffix(".")
        )
        if not key or is_told or value in (None, [], {}, "") or key.startswith(TRAINER_CONFIG):
            continue
        reason = next(words for pattern, words in ONLY_HERE if fnmatchcase(key, pattern))
        yield f"{key}={value}", reason


def quoted(value: Any) -> str:
    """A value for a shell: what the environment decides stays a variable."""
    text = _hydra(value)
    if "${oc.env:" not in text:
        return shlex.quote(text) if not re.fullmatch(r"[\w./:@%+=,-]+", text) else text
    inside = re.sub(r"\$\{oc\.env:(\w+)(?:,([^}]*))?\}", lambda match: _variable(match[1], match[2]), text)
    return '"' + inside.replace('"', '\\"') + '"'


def _variable(name: str, default: str | None) -> str:
    return f"${{{name}:-{default}}}" if default else f"${{{name}}}"


def _hydra(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ",".join(f'"{each}"' if isinstance(each, str) else _hydra(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra(each)}" for name, each in value.items()) + "}"
    if isinstance(value, float):
        return short(value)
    return str(value)
