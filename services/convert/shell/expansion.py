"""From words to texts: variables, defaults, arrays, arithmetic, and the few commands whose answer needs no running."""

import fnmatch
import re
from collections.abc import Callable, Iterable

from services.convert.shell.arithmetic import calculated
from services.convert.shell.lexer import parts_of, tokens
from services.convert.shell.state import MISSING, UNKNOWN, State, from_environment, is_unset, missing
from services.convert.shell.words import Arithmetic, Literal, Part, Substitution, Variable, Word

Substituted = Callable[[str], str]

_NAMED = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
_OPERATION = re.compile(r"(:?[-=?+])(.*)", re.DOTALL)
_CUT = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_REPLACED = re.compile(r"//?([^/]*)(?:/(.*))?", re.DOTALL)
_SLICE = re.compile(r":\s*(-?\d+)(?::(-?\d+))?")


class Expansion:
    """Expands words in a state; `substituted` gives the output of a `$(...)`."""

    def __init__(self, state: State, substituted: Substituted) -> None:
        self.state = state
        self.substituted = substituted

    def fields(self, words: Iterable[Word]) -> list[str]:
        """The fields that words become: unquoted expansions are split, quoted ones are not."""
        return [field for word in words for field in self._fields(word)]

    def text(self, word: Word) -> str:
        """A word as one text, as on the right of an assignment."""
        return "".join(self._part(part) for part in word.parts)

    def joined(self, parts: Iterable[Part]) -> str:
        return "".join(self._part(part) for part in parts)

    def _fields(self, word: Word) -> list[str]:
        """The fields of one word. A text grows at the last of `fields`; None stands where no field has begun."""
        fields: list[str | None] = [None]
        for part in word.parts:
            entries = self._whole_array(part)
            if entries is None and (part.is_quoted or isinstance(part, Literal)):
                text = self._part(part)
                if text or part.is_quoted:
                    fields[-1] = (fields[-1] or "") + text
                continue
            pieces = re.split(r"\s+", self._part(part)) if entries is None else entries
            for number, piece in enumerate(pieces):
                if number:
                    fields.append(None)
                if piece or entries is not None:
                    fields[-1] = (fields[-1] or "") + piece
        return [field for field in fields if field is not None]

    def _whole_array(self, part: Part) -> list[str] | None:
        """The entries of `"$@"` and `"${NAME[@]}"`; None for any other part."""
        if not isinstance(part, Variable):
            return None
        if part.inside in ("@", "*"):
            return list(self.state.arguments)
        match = re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\](?::?[-+].*)?", part.inside, re.DOTALL)
        slice_ = re.fullmatch(r"@:(\d+)", part.inside)
        if slice_:
            return self.state.arguments[max(0, int(slice_[1]) - 1) :]
        return self.state.texts(match[1]) if match else None

    def _part(self, part: Part) -> str:
        if isinstance(part, Literal):
            return part.text
        if isinstance(part, Substitution):
            return self.substituted(part.script)
        if isinstance(part, Arithmetic):
            return self.arithmetic(part.expression)
        return self._variable(part.inside)

    def arithmetic(self, expression: str) -> str:
        """The value of an expression as text; `UNKNOWN` where a variable of it is not known."""
        plain = self.joined(parts_of(expression, is_quoted=True))
        try:
            return str(calculated(plain, lambda name: self.state.text(name) or "0"))
        except ValueError as error:
            self.state.remark(f"$(({expression.strip()})): {_readable(str(error))}")
            return UNKNOWN

    def _variable(self, inside: str) -> str:
        if inside.startswith("#") and len(inside) > 1:
            return self._length(inside[1:])
        if inside.startswith("!") and len(inside) > 1:
            return self._variable(self.state.text(inside[1:]) or inside[1:])
        match = _NAMED.fullmatch(inside)
        if match is None:
            self.state.remark(f"${{{inside}}} cannot be read: it stays empty")
            return ""
        name, index, operation = match.groups()
        value = self._value(name, index)
        return self._operated(name, value, operation) if operation else self._known(name, value)

    def _length(self, inside: str) -> str:
        name = inside.partition("[")[0]
        is_array = inside.endswith(("[@]", "[*]"))
        return str(len(self.state.texts(name)) if is_array else len(self.state.text(name) or ""))

    def _value(self, name: str, index: str | None) -> str | None:
        special = {"#": str(len(self.state.arguments)), "?": "0", "$": "1", "!": "1", "-": ""}
        if name in special:
            return special[name]
        if name in ("@", "*"):
            return " ".join(self.state.arguments) or None
        if name in ("BASH_SOURCE", "0"):
            return self.state.script
        if index is None:
            return self.state.text(name)
        entries = self.state.texts(name)
        if index in ("[@]", "[*]"):
            return " ".join(entries) if entries else None
        keyed = self.state.variables.get(name)
        if isinstance(keyed, dict):
            return keyed.get(self._text_of(index[1:-1]))
        place = self.arithmetic(index[1:-1])
        return entries[int(place)] if re.fullmatch(r"-?\d+", place) and int(place) < len(entries) else None

    def _known(self, name: str, value: str | None) -> str:
        """The value; for an argument that is not given nothing, for a variable what the environment has."""
        if value is not None:
            return value
        if name.isdigit():
            self.state.remark(f"${name}, an argument of the script, is not given: write it behind --")
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or isinstance(self.state.variables.get(name), list | dict):
            return missing(name) if name.isdigit() else ""
        if name in ("RANDOM", "SECONDS", "LINENO"):
            return UNKNOWN
        return from_environment(name)

    def _operated(self, name: str, value: str | None, operation: str) -> str:
        if match := _OPERATION.fullmatch(operation):
            return self._default(name, value, match[1], match[2])
        known = self._known(name, value)
        if match := _CUT.fullmatch(operation):
            return _cut(known, match[1], self._text_of(match[2]))
        if match := _SLICE.fullmatch(operation):
            start = int(match[1])
            return known[start:][: int(match[2])] if match[2] else known[start:]
        if operation in ("^^", ",,", "^", ","):
            return {"^^": known.upper(), ",,": known.lower(), "^": known[:1].upper() + known[1:]}.get(
                operation, known[:1].lower() + known[1:]
            )
        if match := _REPLACED.fullmatch(operation):
            old, new = self._text_of(match[1]), self._text_of(match[2] or "")
            return known.replace(old, new) if operation.startswith("//") else known.replace(old, new, 1)
        self.state.remark(f"${{{name}{operation}}} cannot be evaluated: {name} is taken as it is")
        return known

    def _default(self, name: str, value: str | None, sign: str, given: str) -> str:
        is_absent = value is None or (sign.startswith(":") and is_unset(value))
        kind = sign[-1]
        if kind == "+":
            return "" if is_absent else self._text_of(given)
        if not is_absent:
            return value or ""
        if kind == "?":
            self.state.remark(f"{name} has to be set: --env {name}=VALUE")
            return from_environment(name)
        found = self._text_of(given)
        if kind == "=":
            self.state.variables[name] = found
        return found

    def _text_of(self, given: str) -> str:
        """The text of what stands behind an operation, with quotes opened."""
        if not re.search(r"['\"\\]", given):
            return self.joined(parts_of(given, is_quoted=True)) if given else ""
        return " ".join(self.text(token) for token in tokens(given) if isinstance(token, Word))


def _cut(text: str, sign: str, pattern: str) -> str:
    """`text` without the shortest (`#`, `%`) or longest (`##`, `%%`) beginning or end that fits the pattern."""
    ends = range(len(text) + 1)
    if sign.startswith("#"):
        fitting = [end for end in ends if fnmatch.fnmatchcase(text[:end], pattern)]
        return text if not fitting else text[max(fitting) if len(sign) > 1 else min(fitting) :]
    fitting = [end for end in ends if fnmatch.fnmatchcase(text[end:], pattern)]
    return text if not fitting else text[: min(fitting) if len(sign) > 1 else max(fitting)]


def _readable(text: str) -> str:
    return MISSING.sub(r"$\1", text.replace(UNKNOWN, "?"))
