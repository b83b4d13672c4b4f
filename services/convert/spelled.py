"""How veRL 0.9.1 takes what a launch says: the place where it reads a key, the sign before it, its value in a shell."""

import re
import shlex
from fnmatch import fnmatchcase
from typing import Any

from services.config.verl.keys import ACTOR_KEY, ENGINE_OF, MODEL_KEY
from services.config.verl.tree import moved_key
from services.convert.overrides import scalar
from services.convert.row import PPO
from services.convert.writing import short

SUPERVISED = {f"{ACTOR_KEY}.fsdp_config": "engine", f"{ACTOR_KEY}.optim": "optim", MODEL_KEY: "model"}
"""Sections of `trainer.trainer_config`, and those of `sft_trainer_engine.yaml` that say the same."""

OPEN: tuple[str, ...] = (
    "*.override_config.*",
    "*.override_optimizer_config.*",
    "*.engine_kwargs.*",
    "*.reward_kwargs.*",
    "*.wrap_policy.*",
    "*.tiled_mlp.*",
    "*.lora.*",
    "*.mixed_precision*",
    "*.apply_chat_template_kwargs.*",
    "*.target_parameters",
    "*.checkpoint.strict",
    "*.checkpoint.save_lora_only",
    "*.ppo_infer_*_per_gpu",
    "algorithm.rollout_correction.*",
)
"""Keys that veRL reads and its files do not have: below a mapping that takes any name, or a field of its classes alone.
Hydra takes them with `++`, which adds a key or changes it."""

_PLAIN = re.compile(r"[\w/+.$%*@?|:-]+( +[\w/+.$%*@?|:-]+)*", re.ASCII)
_BARE = re.compile(r"[\w./:@%+,-]+", re.ASCII)
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:(\w+)(?:,([^}]*))?\}")


def place(key: str, kind: str) -> str | None:
    """Where a launch of this kind has a key of `trainer.trainer_config`; None where it has none."""
    read = moved_key(key)
    if kind == PPO:
        # an engine has the strategy that its role has, whatever its own section says
        return next((f"{role}.strategy" for role, engine in ENGINE_OF.items() if read == f"{engine}.strategy"), read)
    found = (theirs + read.removeprefix(own) for own, theirs in SUPERVISED.items() if read.startswith(f"{own}."))
    return next(found, None)


def override(key: str, value: Any) -> str:
    """One argument of a launch, for a shell."""
    is_open = any(fnmatchcase(key, pattern) for pattern in OPEN)
    return f"{'++' if is_open else ''}{key}={quoted(value)}"


def quoted(value: Any) -> str:
    """A value for hydra in a shell: what the environment decides stays a variable."""
    text = _hydra(value)
    if "${oc.env:" not in text:
        return text if _BARE.fullmatch(text) else shlex.quote(text)
    pieces, at = [], 0
    for match in _FROM_ENVIRONMENT.finditer(text):
        pieces += [_in_quotes(text[at : match.start()]), _variable(match[1], match[2])]
        at = match.end()
    return f'"{"".join((*pieces, _in_quotes(text[at:])))}"'


def _in_quotes(text: str) -> str:
    """A text within double quotes of a shell, in which nothing is expanded."""
    return re.sub(r'([\\"`$])', r"\\\1", text)


def _variable(name: str, default: str | None) -> str:
    return f"${{{name}:-{default}}}" if default else f"${{{name}}}"


def _hydra(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return (
            "[" + ",".join(_in_hydras_quotes(each) if isinstance(each, str) else _hydra(each) for each in value) + "]"
        )
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra(each)}" for name, each in value.items()) + "}"
    if isinstance(value, float):
        return short(value)
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    """A text as hydra reads it as a text: in quotes, unless it is plain."""
    plain = _FROM_ENVIRONMENT.sub("x", text)
    is_plain = _PLAIN.fullmatch(plain) is not None and isinstance(scalar(text), str)
    return text if is_plain else _in_hydras_quotes(text)


def _in_hydras_quotes(text: str) -> str:
    """A text in quotes: of backslashes hydra reads those alone as signs that stand before a quote."""
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'
