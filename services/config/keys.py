"""Dotted keys: `buffer.explorer_input.eval_tasksets[0].path` names one value of a tree."""

import re
from collections.abc import Iterator
from typing import Any

Part = str | int

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def joined(parts: tuple[Part, ...]) -> str:
    """The dotted key of a path."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def split(key: str) -> tuple[Part, ...]:
    """The path of a dotted key."""
    return tuple(int(index) if index else name for name, index in _PART.findall(key))


def leaves(tree: object, path: tuple[Part, ...] = ()) -> Iterator[tuple[tuple[Part, ...], object]]:
    """All values of a tree with their paths; an empty mapping or list is a value."""
    children: list[tuple[Part, Any]] = []
    if isinstance(tree, dict):
        children = list(tree.items())
    elif isinstance(tree, list):
        children = list(enumerate(tree))
    if not children:
        yield path, tree
    for part, child in children:
        yield from leaves(child, (*path, part))


def get(tree: Any, key: str) -> Any:
    """The value at a dotted key; KeyError, IndexError or TypeError where there is none."""
    for part in split(key):
        tree = tree[part]
    return tree


def put(tree: dict[str, Any], key: str, value: object) -> None:
    """Set the value at a dotted key, making mappings on the way."""
    *way, last = split(key)
    node: Any = tree
    for part in way:
        if isinstance(part, str) and node.get(part) is None:
            node[part] = {}
        node = node[part]
    node[last] = value


def is_under(key: str, ancestor: str) -> bool:
    """Whether `key` is `ancestor` or lies below it."""
    return key == ancestor or key.startswith((f"{ancestor}.", f"{ancestor}["))
