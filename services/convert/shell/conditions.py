"""The answers of `[`, `test` and `[[`. Files are taken as not there: a conversion looks at nothing but the script."""

import fnmatch
import re
from collections.abc import Callable, Sequence

from services.convert.shell.state import is_unset

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "=": fnmatch.fnmatchcase,
    "==": fnmatch.fnmatchcase,
    "!=": lambda left, right: not fnmatch.fnmatchcase(left, right),
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "=~": lambda left, right: _searched(right, left),
}


def holds(terms: Sequence[str], is_set: Callable[[str], bool]) -> bool:
    """Whether a condition holds; `is_set` answers `-v NAME`. What cannot be read does not hold."""
    return _Condition(list(terms), is_set).either()


class _Condition:
    def __init__(self, terms: list[str], is_set: Callable[[str], bool]) -> None:
        self.terms = terms
        self.is_set = is_set

    def either(self) -> bool:
        found = self._both()
        while self._take("||", "-o"):
            other = self._both()
            found = found or other
        return found

    def _both(self) -> bool:
        found = self._one()
        while self._take("&&", "-a"):
            other = self._one()
            found = found and other
        return found

    def _one(self) -> bool:
        if self._take("!"):
            return not self._one()
        if self._take("("):
            found = self.either()
            self._take(")")
            return found
        if len(self.terms) >= 3 and self.terms[1] in (*_NUMBERS, *_TEXTS):
            left, sign, right = self.terms[:3]
            del self.terms[:3]
            return _compared(left, sign, right)
        if len(self.terms) >= 2 and re.fullmatch(r"-[a-zA-Z]", self.terms[0]):
            sign, value = self.terms[:2]
            del self.terms[:2]
            return {"-z": is_unset(value), "-n": not is_unset(value), "-v": self.is_set(value)}.get(sign, False)
        return bool(self.terms) and not is_unset(self.terms.pop(0))

    def _take(self, *signs: str) -> bool:
        if self.terms and self.terms[0] in signs:
            self.terms.pop(0)
            return True
        return False


def _compared(left: str, sign: str, right: str) -> bool:
    if sign in _TEXTS:
        return _TEXTS[sign](*("" if is_unset(side) else side for side in (left, right)))
    try:
        return _NUMBERS[sign](int(left), int(right))
    except ValueError:
        return False


def _searched(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
