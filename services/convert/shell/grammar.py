"""From tokens to commands: the grammar of a shell, as far as scripts that start a training use it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.convert.errors import ConversionError
from services.convert.shell.lexer import tokens
from services.convert.shell.words import Operator, Token, Word

ENDS = (";", "&", "\n", ";;", ";&", ";;&")
REDIRECTIONS = ("<", ">", ">>", ">|", "&>", ">&", "<&", "<>", "<<", "<<-", "<<<")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")


@dataclass(frozen=True)
class Simple:
    """A command with its words; assignments before it are words of their own."""

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class Sequence:
    """Commands one after the other: `joins[i]` (`&&`, `||`, or `;`) stands before command `i`."""

    commands: tuple["Command", ...]
    joins: tuple[str, ...]


@dataclass(frozen=True)
class Pipeline:
    """Commands of which each reads what the one before it prints."""

    commands: tuple["Command", ...]


@dataclass(frozen=True)
class Negation:
    command: "Command"


@dataclass(frozen=True)
class If:
    """Conditions with what follows each; `otherwise` is empty where there is no `else`."""

    branches: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence


@dataclass(frozen=True)
class Case:
    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Sequence], ...]


@dataclass(frozen=True)
class For:
    """`values` is None where the loop goes over the script's own arguments."""

    name: str
    values: tuple[Word, ...] | None
    body: Sequence


@dataclass(frozen=True)
class While:
    condition: Sequence
    body: Sequence
    is_until: bool


@dataclass(frozen=True)
class Function:
    name: str
    body: Sequence


@dataclass(frozen=True)
class Test:
    """`[[ ... ]]`: its words and operators in their order."""

    terms: tuple[Token, ...]


@dataclass(frozen=True)
class Calculation:
    """`(( ... ))`."""

    expression: str


Command = Simple | Sequence | Pipeline | Negation | If | Case | For | While | Function | Test | Calculation
NOTHING = Sequence((), ())


def parsed(text: str) -> Sequence:
    """The commands of a script.

    Raises:
        ConversionError: a construct is not complete.
    """
    parser = _Parser(tokens(text))
    found = parser.sequence(())
    if parser.here is not None:
        raise ConversionError(f"line {parser.line}: {parser.said!r} is not expected here")
    return found


class _Parser:
    def __init__(self, items: list[Token]) -> None:
        self.items = items
        self.at = 0
        self.compounds: dict[str, Callable[[], Command]] = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "function": self._function,
            "{": self._group,
            "[[": self._test,
        }

    @property
    def here(self) -> Token | None:
        return self.items[self.at] if self.at < len(self.items) else None

    @property
    def said(self) -> str | None:
        """The keyword or operator that stands here."""
        token = self.here
        return token.text if isinstance(token, Operator) else token.plain if token else None

    @property
    def line(self) -> int:
        return (self.here or self.items[-1]).line

    def sequence(self, stops: tuple[str, ...]) -> Sequence:
        """Commands up to one of the keywords `stops`, which is left standing."""
        commands: list[Command] = []
        joins: list[str] = []
        join = ";"
        while self._skip_ends(stops):
            commands.append(self._pipeline())
            joins.append(join)
            join = self.said if self.said in ("&&", "||") else ";"
            if join != ";":
                self.at += 1
                self._skip(("\n",))
        return Sequence(tuple(commands), tuple(joins))

    def _skip_ends(self, stops: tuple[str, ...]) -> bool:
        """Whether a command stands next, once ends of commands are skipped."""
        self._skip(tuple(end for end in ENDS if end not in stops))
        return self.here is not None and self.said not in stops

    def _skip(self, words: tuple[str, ...]) -> None:
        while isinstance(self.here, Operator) and self.here.text in words:
            self.at += 1

    def _expect(self, word: str) -> None:
        if self.said != word:
            found = "the end of the script" if self.here is None else repr(self.said)
            raise ConversionError(f"line {self.line}: {word!r} is expected, and {found} stands there")
        self.at += 1

    def _pipeline(self) -> Command:
        negated = False
        while self.said in ("!", "time"):
            negated ^= self.said == "!"
            self.at += 1
        commands = [self._command()]
        while self.said in ("|", "|&"):
            self.at += 1
            self._skip(("\n",))
            commands.append(self._command())
        whole = commands[0] if len(commands) == 1 else Pipeline(tuple(commands))
        return Negation(whole) if negated else whole

    def _command(self) -> Command:
        said = self.said
        if said == "(":
            return self._parenthesised()
        if said in self.compounds:
            found = self.compounds[said]()
            self._skip_redirections()
            return found
        return self._simple()

    def _simple(self) -> Command:
        line = self.line
        assignments: list[Word] = []
        words: list[Word] = []
        while self.here is not None:
            if self._skip_redirection():
                continue
            token = self.here
            if isinstance(token, Operator):
                break
            self.at += 1
            (assignments if not words and is_assignment(token) else words).append(token)
            if len(words) == 1 and self.said == "(" and not assignments:
                return self._body_of(words[0].plain or "")
        if not words and not assignments:
            raise ConversionError(f"line {self.line}: {self.said!r} is not expected here")
        return Simple(tuple(assignments), tuple(words), line)

    def _skip_redirections(self) -> None:
        while self._skip_redirection():
            pass

    def _skip_redirection(self) -> bool:
        token = self.here
        if not isinstance(token, Operator) or token.text not in REDIRECTIONS:
            return False
        self.at += 1
        if isinstance(self.here, Word):
            self.at += 1
        elif self.said == "(":  # <( ... )
            self._parenthesised()
        return True

    def _parenthesised(self) -> Command:
        """A subshell, or `(( ... ))`."""
        following = self.items[self.at + 1] if self.at + 1 < len(self.items) else None
        if isinstance(following, Operator) and following.text == "(":
            return self._calculation()
        self.at += 1
        found = self.sequence((")",))
        self._expect(")")
        return found

    def _calculation(self) -> Calculation:
        depth, said = 0, []
        while self.here is not None:
            token = self.here
            self.at += 1
            depth += {"(": 1, ")": -1}.get(token.text, 0) if isinstance(token, Operator) else 0
            if depth == 0:
                break
            said.append(token.text if isinstance(token, Operator) else _source(token))
        return Calculation(" ".join(said[2:-1]))

    def _group(self) -> Sequence:
        self._expect("{")
        found = self.sequence(("}",))
        self._expect("}")
        return found

    def _if(self) -> If:
        branches, otherwise = [], NOTHING
        self.at += 1
        while True:
            condition = self.sequence(("then",))
            self._expect("then")
            branches.append((condition, self.sequence(("elif", "else", "fi"))))
            if self.said != "elif":
                break
            self.at += 1
        if self.said == "else":
            self.at += 1
            otherwise = self.sequence(("fi",))
        self._expect("fi")
        return If(tuple(branches), otherwise)

    def _case(self) -> Case:
        self.at += 1
        subject = self._a_word()
        self._skip(("\n",))
        self._expect("in")
        branches = list(self._branches())
        self._expect("esac")
        return Case(subject, tuple(branches))

    def _branches(self) -> Iterator[tuple[tuple[Word, ...], Sequence]]:
        self._skip(("\n",))
        while self.here is not None and self.said != "esac":
            self._skip(("(",))
            patterns = [self._a_word()]
            while self.said == "|":
                self.at += 1
                patterns.append(self._a_word())
            self._expect(")")
            yield tuple(patterns), self.sequence((";;", ";&", ";;&", "esac"))
            self._skip((";;", ";&", ";;&", "\n"))

    def _for(self) -> Command:
        self.at += 1
        if self.said == "(":
            self._calculation()
            return For("", (Word((), self.line),), self._loop_body())
        name, values = self._a_word().plain or "", None
        self._skip(("\n",))
        if self.said == "in":
            self.at += 1
            given = []
            while isinstance(self.here, Word):
                given.append(self._a_word())
            values = tuple(given)
        return For(name, values, self._loop_body())

    def _while(self) -> While:
        is_until = self.said == "until"
        self.at += 1
        condition = self.sequence(("do",))
        return While(condition, self._loop_body(), is_until)

    def _loop_body(self) -> Sequence:
        self._skip((";", "\n"))
        self._expect("do")
        body = self.sequence(("done",))
        self._expect("done")
        return body

    def _function(self) -> Function:
        self.at += 1
        return self._body_of(self._a_word().plain or "")

    def _body_of(self, name: str) -> Function:
        self._skip(("(",))
        self._skip((")", "\n"))
        return Function(name, self._group())

    def _test(self) -> Test:
        self.at += 1
        terms: list[Token] = []
        while self.here is not None and self.said != "]]":
            if self.said != "\n":
                terms.append(self.here)
            self.at += 1
        self._expect("]]")
        return Test(tuple(terms))

    def _a_word(self) -> Word:
        token = self.here
        if not isinstance(token, Word):
            raise ConversionError(f"line {self.line}: a word is expected, and {self.said!r} stands there")
        self.at += 1
        return token


def is_assignment(word: Word) -> bool:
    """Whether a word is `NAME=...`, `NAME+=...` or `NAME[i]=...`."""
    if word.array is not None:
        return True
    first = word.parts[0] if word.parts else None
    text = getattr(first, "text", "") if first is not None and not first.is_quoted else ""
    return _ASSIGNMENT.match(text) is not None


def _source(word: Word) -> str:
    """The text of a word inside `(( ... ))`."""
    return "".join(getattr(part, "text", None) or f"${{{getattr(part, 'inside', '0')}}}" for part in word.parts)
