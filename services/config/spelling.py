"""What a person may have meant by a key or a name that nobody knows."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import get_args, get_origin

from services.config.keys import Part, joined
from services.config.section import Section
from services.config.tree import RunConfig

MAX_PLACES = 3


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word closest to `word`, if any is at least so alike (0 to 1)."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[matches[0]] if matches else None


def advice_for_unknown(path: tuple[Part, ...]) -> str:
    """What to do about an unknown key: the right spelling here, or the sections where such a key exists."""
    *way, last = path
    name = str(last)
    elsewhere = [key for key in _keys_by_name().get(name, ()) if key != joined(path)]
    if elsewhere:
        return f"did you mean {_any_of(elsewhere)}?"
    section = _section_at(tuple(way))
    here = nearest(name, section.model_fields) if section else None
    if here:
        return f"did you mean {joined((*way, here))}?"
    anywhere = nearest(name, _keys_by_name(), likeness=0.8)
    if anywhere:
        return f"did you mean {_any_of(_keys_by_name()[anywhere])}?"
    known = ", ".join(sorted(section.model_fields)) if section else ""
    return f"remove it; known here: {known}" if known else "remove it"


def _any_of(keys: list[str]) -> str:
    return " or ".join(keys[:MAX_PLACES])


def _section_at(path: tuple[Part, ...]) -> type[Section] | None:
    annotation: object = RunConfig
    for part in path:
        section = _section_in(annotation)
        if section and isinstance(part, str) and part in section.model_fields:
            annotation = section.model_fields[part].annotation
        elif (many := _many_in(annotation)) is None:
            return None
        else:
            annotation = get_args(many)[-1]
    return _section_in(annotation)


def _many_in(annotation: object) -> object | None:
    """The list or mapping that an annotation names, alone or beside None."""
    arms = (annotation, *get_args(annotation))
    return next((arm for arm in arms if get_origin(arm) in (list, dict)), None)


def _section_in(annotation: object) -> type[Section] | None:
    """The section that an annotation `S` or `S | None` names."""
    arms = (annotation,) if isinstance(annotation, type) else get_args(annotation)
    if get_origin(annotation) in (list, dict):
        return None
    return next((arm for arm in arms if isinstance(arm, type) and issubclass(arm, Section)), None)


@cache
def _keys_by_name() -> dict[str, list[str]]:
    """The dotted keys that end in each name, the shallowest first; stages repeat them and are left out."""
    by_name: dict[str, list[str]] = {}
    for path in sorted(_paths(RunConfig, ()), key=len):
        by_name.setdefault(str(path[-1]), []).append(joined(path))
    return by_name


def _paths(section: type[Section], path: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    for name, field in section.model_fields.items():
        if name == "stages":
            continue
        yield (*path, name)
        inner = _section_in(field.annotation)
        if inner:
            yield from _paths(inner, (*path, name))
