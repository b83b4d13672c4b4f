"""The output of the few commands that scripts ask for a value and that need no machine: paths, sums, texts."""

import posixpath
from collections.abc import Sequence

from services.convert.shell.arithmetic import calculated
from services.convert.shell.state import from_environment

OF_PATHS = ("dirname", "basename", "realpath", "readlink")


def answer(words: Sequence[str], directory: str) -> str | None:
    """What a command prints; None where only running it would tell. `directory` is where it would run."""
    name, rest = words[0], list(words[1:])
    if name == "echo":
        return " ".join(word for word in rest if word not in ("-n", "-e"))
    if name == "pwd":
        return directory
    if name in OF_PATHS:
        paths = [word for word in rest if not word.startswith("-")]
        return _of_path(name, paths, directory) if paths else None
    if name == "expr":
        return _sum(rest)
    if name == "whoami":
        return from_environment("USER")
    if name == "hostname":
        return from_environment("HOSTNAME")
    return None


def _of_path(name: str, paths: list[str], directory: str) -> str:
    path = paths[0].rstrip("/") or "/"
    if name == "dirname":
        return posixpath.dirname(path) or "."
    if name == "basename":
        last = posixpath.basename(path)
        return last.removesuffix(paths[1]) if len(paths) > 1 else last
    return path if path != "." else directory


def _sum(words: Sequence[str]) -> str | None:
    try:
        return str(calculated(" ".join(words), lambda name: "0"))
    except ValueError:
        return None
