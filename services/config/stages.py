"""Stages: one configuration after the other, each the whole with its own keys written over.

A stage overrides the keys that it writes, and no others; a list or a value replaces what stood there.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from services.config.errors import Problem
from services.config.keys import is_under
from services.config.tree import DEFAULT_CHECKPOINT_ROOT_DIR, RunConfig

STAGES = "stages"
NAME = "stage_name"


def staged(tree: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The tree of keys of stage `number` (from 0): a run `<name>-<stage>`, in a directory of the whole's."""
    stage = tree[STAGES][number]
    written = {key: value for key, value in stage.items() if key != NAME and value is not None}
    whole = {key: value for key, value in tree.items() if key != STAGES}
    name, stage_name = str(whole.get("name", _default("name"))), str(stage[NAME])
    directory = _directory(whole) / stage_name
    return {**merged(whole, written), "name": f"{name}-{stage_name}", "checkpoint_job_dir": str(directory)}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with the keys of `over` written over it, mapping by mapping."""
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        is_section = isinstance(below, Mapping) and isinstance(value, Mapping)
        both[key] = merged(below, value) if is_section else value  # type: ignore[arg-type]
    return both


def written_in(written: Mapping[str, str], number: int) -> dict[str, str]:
    """Where the keys of stage `number` were written, from where those of the whole file were."""
    prefix = f"{STAGES}[{number}]."
    own = {key.removeprefix(prefix): origin for key, origin in written.items() if key.startswith(prefix)}
    whole = {key: origin for key, origin in written.items() if not key.startswith(f"{STAGES}[")}
    replaced = {key for key in whole if any(is_under(key, other) or is_under(other, key) for other in own)}
    return {**{key: origin for key, origin in whole.items() if key not in replaced}, **own}


def problems_of_names(tree: Mapping[str, Any]) -> Iterator[Problem]:
    """Names that cannot be those of directories within the run's, or that stand twice."""
    seen: set[str] = set()
    for number, stage in enumerate(tree.get(STAGES) or []):
        key, name = f"{STAGES}[{number}].{NAME}", str(stage[NAME])
        if name.strip() in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
            yield Problem(key, f"{key}={name!r} cannot name a directory: use letters, digits, - and _ without slashes")
        elif name in seen:
            yield Problem(key, f"{key}={name} is the name of an earlier stage: give each its own")
        seen.add(name)


def _directory(tree: Mapping[str, Any]) -> Path:
    if tree.get("checkpoint_job_dir"):
        return Path(str(tree["checkpoint_job_dir"]))
    root = tree.get("checkpoint_root_dir") or DEFAULT_CHECKPOINT_ROOT_DIR
    project, name = (str(tree.get(key, _default(key))) for key in ("project", "name"))
    return Path(str(root)) / project / name


def _default(key: str) -> object:
    return RunConfig.model_fields[key].default
