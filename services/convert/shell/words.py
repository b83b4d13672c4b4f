"""The words of a shell script: what the lexer makes, before anything is expanded."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself; unquoted text may be split or be an operator of `[[`."""

    text: str
    is_quoted: bool = False


@dataclass(frozen=True)
class Variable:
    """`$NAME` or `${NAME...}`; `inside` is all that stands between the braces."""

    inside: str
    is_quoted: bool = False


@dataclass(frozen=True)
class Substitution:
    """`$(script)`, or the same in backquotes."""

    script: str
    is_quoted: bool = False


@dataclass(frozen=True)
class Arithmetic:
    """`$((expression))`."""

    expression: str
    is_quoted: bool = False


Part = Literal | Variable | Substitution | Arithmetic


@dataclass(frozen=True)
class Word:
    """A word with the line it stands in, from 1. `array` holds the words of `NAME=( ... )`."""

    parts: tuple[Part, ...]
    line: int
    array: tuple["Word", ...] | None = None

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and expansions; None for any other."""
        if self.array is not None or any(not isinstance(part, Literal) or part.is_quoted for part in self.parts):
            return None
        return "".join(part.text for part in self.parts if isinstance(part, Literal))

    @property
    def is_quoted(self) -> bool:
        return any(part.is_quoted for part in self.parts)


@dataclass(frozen=True)
class Operator:
    """`;`, `&&`, `|`, a parenthesis, a redirection, or the end of a line."""

    text: str
    line: int


Token = Word | Operator
