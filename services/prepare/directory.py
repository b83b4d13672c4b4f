"""Directories that are made once: a directory under its final name is complete, for its marker is written last."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MARKER = ".complete.json"


def make_once(target: Path, recipe: str, make: Callable[[Path], None]) -> bool:
    """Fill `target` by `make`, unless it was completed by the same `recipe`. Returns whether it was made now.

    `make` works in a neighbouring directory that takes the name of `target` only when complete. Two processes that
    ask for the same target make it once: the second waits for the first.
    """
    if made_by(target) == recipe:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_name(f".{target.name}.lock")):
        if made_by(target) == recipe:
            return False
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        make(partial)
        (partial / MARKER).write_text(json.dumps({"recipe": recipe}) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
    return True


def made_by(directory: Path) -> str | None:
    """The recipe that completed `directory`, or None where it is absent or incomplete."""
    try:
        recipe = json.loads((directory / MARKER).read_text(encoding="utf-8"))["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recipe if isinstance(recipe, str) else None


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
