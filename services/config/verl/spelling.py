"""What a person may have meant by a key of `trainer.trainer_config` that veRL does not know."""

from collections.abc import Iterator
from functools import cache

from services.config.spelling import nearest
from services.config.verl.keys import BELOW, IDLE, MOVED, OURS, SECTIONS


def is_section(key: str) -> bool:
    """Whether the key names a section, which has no value of its own."""
    return any(known.startswith(f"{key}.") for known in _known())


def meant(key: str) -> str | None:
    """The known key that is likest, each part of the way first; else one of that name at another place."""
    return _corrected(key) or _elsewhere(key.rpartition(".")[2])


def _corrected(key: str) -> str | None:
    way = ""
    for part in key.split("."):
        here = {known.removeprefix(way).split(".")[0] for known in _known() if known.startswith(way)}
        found = part if part in here else nearest(part, sorted(here))
        if found is None:
            return None
        way += f"{found}."
    corrected = way.removesuffix(".")
    return corrected if corrected in _known() and corrected != key else None


def _elsewhere(name: str) -> str | None:
    places: dict[str, str] = {}
    for key in _known():
        places.setdefault(key.rpartition(".")[2], key)
    found = name if name in places else nearest(name, places, likeness=0.8)
    return places[found] if found else None


@cache
def _known() -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for key in _keys() if "*" not in key))


def _keys() -> Iterator[str]:
    older = {before: SECTIONS[after] for before, after in MOVED.items() if after in SECTIONS}
    for section, fields in (SECTIONS | older).items():
        for field in fields:
            yield f"{section}.{field}"
            yield from (f"{section}.{field}.{name}" for name in BELOW.get(field, ()))
    yield from (*MOVED, *OURS, *IDLE)
