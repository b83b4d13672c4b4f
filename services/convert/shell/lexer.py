"""From the text of a script to its tokens: quotes, continued lines, comments, heredocs, and nested expansions."""

import re
from collections.abc import Iterator

from services.convert.errors import ConversionError
from services.convert.shell.words import Arithmetic, Literal, Operator, Part, Substitution, Token, Variable, Word

OPERATORS = ("<<<", "&&", "||", ";;&", ";;", ";&", "<<-", "<<", ">>", ">|", "&>", ">&", "<&", "<>", "|&")
SINGLE = ";|&()<>"
BLANKS = " \t\r"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=$")
_BETWEEN = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)+(?=[ \t]*[\"']?(?:[+~]{0,2}\w+(?:[./@]\w+)+=|\$@|\$\{\w+\[@\]))")
_FILE_NUMBER = re.compile(r"\d+(?=[<>])")


def tokens(text: str) -> list[Token]:
    """All tokens of a script; each line ends in an `Operator` of a newline.

    Raises:
        ConversionError: a quote or a parenthesis is never closed.
    """
    return list(_Lexer(text.replace("\r\n", "\n")).run())


def parts_of(text: str, *, is_quoted: bool) -> tuple[Part, ...]:
    """The parts of a text that stands inside `${...}` or between quotes."""
    return tuple(_Lexer(text).parts_until("", is_quoted=is_quoted))


class _Lexer:
    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.heredocs: list[tuple[str, bool]] = []

    def run(self) -> Iterator[Token]:
        while self.at < len(self.text):
            token = self._next()
            if token is not None:
                yield token
        yield Operator("\n", self.line)

    def _next(self) -> Token | None:
        here = self.text[self.at]
        if here in BLANKS:
            self.at += 1
        elif self._continues():
            pass
        elif here == "#":
            self.at = self._end_of_line()
        elif here == "\n":
            return self._newline()
        elif operator := self._operator():
            return operator
        else:
            return self._word()
        return None

    def _continues(self) -> bool:
        """Step over a backslash before the end of a line, and over blanks that stand between them by mistake."""
        match = re.compile(r"\\[ \t\r]*(\n|$)").match(self.text, self.at)
        if match is None:
            return False
        self.line += match.group().count("\n")
        self.at = match.end()
        self._skip_comments_in_between()
        return True

    def _skip_comments_in_between(self) -> None:
        """A comment that ends in no backslash ends a command in a shell; between two continued lines it is meant as
        a remark, and what follows as the same command."""
        match = _BETWEEN.match(self.text, self.at)
        if match:
            self.line += match.group().count("\n")
            self.at = match.end()

    def _newline(self) -> Operator:
        token = Operator("\n", self.line)
        self.at += 1
        self.line += 1
        for end, is_indented in self.heredocs:
            self._skip_heredoc(end, is_indented)
        self.heredocs.clear()
        return token

    def _skip_heredoc(self, end: str, is_indented: bool) -> None:
        while self.at < len(self.text):
            stop = self._end_of_line()
            line = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if (line.lstrip("\t") if is_indented else line).rstrip("\r") == end:
                return

    def _operator(self) -> Operator | None:
        number = _FILE_NUMBER.match(self.text, self.at)
        at = number.end() if number else self.at
        found = next((one for one in OPERATORS if self.text.startswith(one, at)), None)
        if found is None and self.text[at] in SINGLE:
            found = self.text[at]
        if found is None:
            return None
        self.at = at + len(found)
        if found in ("<<", "<<-"):
            self._remember_heredoc(found == "<<-")
        return Operator(found, self.line)

    def _remember_heredoc(self, is_indented: bool) -> None:
        match = re.compile(r"[ \t]*\\?(['\"]?)([^\s'\";|&<>()]+)\1").match(self.text, self.at)
        if match:
            self.heredocs.append((match.group(2), is_indented))

    def _word(self) -> Word:
        line = self.line
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in BLANKS + "\n" + SINGLE:
            if self.text[self.at] == "\\" and self._continues():
                if self.at < len(self.text) and self.text[self.at] in BLANKS:
                    break
                continue
            parts += self._parts()
        word = Word(_merged(parts), line)
        opens = self.at < len(self.text) and self.text[self.at] == "("
        if opens and word.plain is not None and _ARRAY.fullmatch(word.plain):
            return Word(word.parts, line, self._array())
        return word

    def _array(self) -> tuple[Word, ...]:
        self.at += 1
        words: list[Word] = []
        while self.at < len(self.text):
            if self.text[self.at] == ")":
                self.at += 1
                return tuple(words)
            token = self._next()
            if isinstance(token, Word):
                words.append(token)
        raise ConversionError(f"line {self.line}: an array that begins with ( is never closed")

    def _parts(self) -> list[Part]:
        """What stands next in a word: one part, or those between double quotes."""
        if self.text.startswith(('$"', '"'), self.at):
            self.at = self.text.index('"', self.at) + 1
            return list(self.parts_until('"', is_quoted=True))
        here = self.text[self.at]
        if here == "'":
            return [Literal(self._until("'"), True)]
        if here == "\\":
            self.at += 2
            return [Literal(self.text[self.at - 1 : self.at], True)]
        if here in "$`":
            return [self._expansion(is_quoted=False)]
        self.at += 1
        return [Literal(here)]

    def parts_until(self, end: str, *, is_quoted: bool) -> Iterator[Part]:
        """The parts up to an unescaped `end`, which is stepped over; an empty text is one empty part."""
        literal, yielded = "", False
        while self.at < len(self.text) and (not end or self.text[self.at] != end):
            here = self.text[self.at]
            if here == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                literal += self.text[self.at + 1].replace("\n", "")
                self.line += self.text[self.at + 1] == "\n"
                self.at += 2
            elif here in "$`" and self._expands():
                if literal:
                    yield Literal(literal, is_quoted)
                literal, yielded = "", True
                yield self._expansion(is_quoted=is_quoted)
            else:
                self.line += here == "\n"
                literal += here
                self.at += 1
        if end and self.at >= len(self.text):
            raise ConversionError(f"line {self.line}: a {end} is never closed")
        self.at += len(end)
        if literal or not yielded:
            yield Literal(literal, is_quoted)

    def _expands(self) -> bool:
        following = self.text[self.at + 1 : self.at + 2]
        return self.text[self.at] == "`" or following.isalnum() or following in tuple("_{(@*#?$!-")

    def _expansion(self, *, is_quoted: bool) -> Part:
        text, at = self.text, self.at
        if text[at] == "`":
            return Substitution(self._until("`").replace("\\`", "`"), is_quoted)
        if text.startswith("$((", at) and (expression := self._arithmetic()) is not None:
            return Arithmetic(expression, is_quoted)
        if text.startswith("$(", at):
            return Substitution(self._between("$(", "(", ")"), is_quoted)
        if text.startswith("${", at):
            return Variable(self._between("${", "{", "}"), is_quoted)
        if text.startswith("$'", at):
            self.at += 1
            return Literal(self._until("'").encode().decode("unicode_escape"), True)
        name = _NAME.match(text, at + 1)
        if name:
            self.at = name.end()
            return Variable(name.group(), is_quoted)
        if at + 1 < len(text) and (text[at + 1].isdigit() or text[at + 1] in "@*#?$!-"):
            self.at += 2
            return Variable(text[at + 1], is_quoted)
        self.at += 1
        return Literal("$", is_quoted)

    def _arithmetic(self) -> str | None:
        """The expression of `$((...))`; None where the parentheses are those of a substitution of a subshell."""
        start, depth = self.at + 3, 2
        for at in range(start, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            if depth == 0:
                if self.text[at - 1] != ")":
                    return None
                self.at = at + 1
                return self.text[start : at - 1]
        raise ConversionError(f"line {self.line}: $(( is never closed")

    def _between(self, opening: str, up: str, down: str) -> str:
        """The text inside balanced brackets; quotes inside hide brackets."""
        start = self.at + len(opening)
        depth, at = 1, start
        while at < len(self.text):
            here = self.text[at]
            if here == "\\":
                at += 1
            elif here == "'" and up == "(":
                at = self._closing(at, "'")
            elif here == '"':
                at = self._closing(at, '"')
            elif here == up:
                depth += 1
            elif here == down:
                depth -= 1
                if depth == 0:
                    self.at = at + 1
                    self.line += self.text[start:at].count("\n")
                    return self.text[start:at]
            at += 1
        raise ConversionError(f"line {self.line}: {opening} is never closed")

    def _closing(self, at: int, quote: str) -> int:
        """Where the quote that opens at `at` closes; the place of the opening one where it never does."""
        for end in range(at + 1, len(self.text)):
            escaped = quote == '"' and self.text[end - 1] == "\\"
            if self.text[end] == quote and not escaped:
                return end
        return at

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at + 1)
        if stop < 0:
            raise ConversionError(f"line {self.line}: a {end} is never closed")
        found = self.text[self.at + 1 : stop]
        self.line += found.count("\n")
        self.at = stop + 1
        return found

    def _end_of_line(self) -> int:
        stop = self.text.find("\n", self.at)
        return len(self.text) if stop < 0 else stop


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """The parts with neighbouring literals of one kind joined."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Literal) and isinstance(last, Literal) and last.is_quoted == part.is_quoted:
            merged[-1] = Literal(last.text + part.text, part.is_quoted)
        else:
            merged.append(part)
    return tuple(merged)
