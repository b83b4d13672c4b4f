"""How much of the experience stream is kept once a checkpoint holds it: `buffer.retain`, read into a rule."""

import re
from dataclasses import dataclass
from typing import Literal

_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WORD = re.compile(r"(\d+(?:\.\d+)?)\s*(\S+)")


@dataclass(frozen=True)
class Retention:
    """Keep `all`, the newest `amount` bytes (`size`), the last `amount` seconds (`age`), or `checkpoint`: what the
    oldest kept checkpoint does not hold."""

    kind: Literal["all", "size", "age", "checkpoint"]
    amount: float = 0.0


def retention(text: str, limit_bytes: int) -> Retention:
    """The rule that `text` names, for a stream of at most `limit_bytes`.

    Raises:
        ValueError: it names none.
    """
    if text == "all":
        return Retention("all")
    if text == "checkpoint":
        return Retention("checkpoint")
    match = _WORD.fullmatch(text.strip())
    number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    if unit == "%" and number <= 100:
        return Retention("size", limit_bytes * number / 100)
    if unit in _SIZES:
        return Retention("size", number * _SIZES[unit])
    if unit in _AGES:
        return Retention("age", number * _AGES[unit])
    raise ValueError(f"{text!r} is no rule: use all, checkpoint, a size (512MiB, 50%) or an age (12h, 7d)")
