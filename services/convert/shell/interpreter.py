"""Follows a script from its first line to its last and notes the commands it comes to. Nothing is ever run."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from services.convert.errors import ConversionError
from services.convert.shell import grammar
from services.convert.shell.answers import answer
from services.convert.shell.conditions import holds
from services.convert.shell.expansion import Expansion
from services.convert.shell.state import UNKNOWN, Ran, State, from_environment
from services.convert.shell.words import Operator, Word

_KEYED = re.compile(r"\[([^\]]*)\]=(.*)", re.DOTALL)
MAX_ROUNDS = 64
MAX_DEPTH = 24
MAX_LINES = 120
BUILTINS = (
    ":",
    "set",
    "echo",
    "printf",
    "true",
    "cd",
    "pwd",
    "ulimit",
    "trap",
    "wait",
    "sleep",
    "exit",
    "return",
    "continue",
    "false",
)
DECLARING = ("export", "local", "declare", "readonly", "typeset")
TESTS = ("[", "test")
SILENT = ("true", ":", "set", "popd", "pushd")
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")


def followed(
    text: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, script: str = "script.sh"
) -> State:
    """What a script says, with `arguments` as its own and `environment` set before it.

    `exit` and `return` end nothing, files are taken as not there, and a command that is no builtin succeeds. Of a
    script that cannot be read whole, the pieces are followed that can.

    Raises:
        ConversionError: the script is no complete one, and none of its pieces runs a command.
    """
    state = State(dict(environment or {}), list(arguments), script=script)
    interpreter = _Interpreter(state)
    try:
        whole = grammar.parsed(text)
    except ConversionError as error:
        state.remark(f"{error}: the script is read piece by piece")
        for piece in _pieces(text):
            interpreter.run(piece)
        if not state.ran:
            raise
        return state
    interpreter.run(whole)
    return state


def _pieces(text: str) -> Iterator[grammar.Sequence]:
    """What can be read of a script: from each line on, the fewest lines that are complete; others are left out."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        for end in range(start + 1, min(start + MAX_LINES, len(lines)) + 1):
            if lines[end - 1].rstrip().endswith("\\") and end < len(lines):
                continue
            try:
                yield grammar.parsed("\n".join(lines[start:end]))
            except ConversionError:
                continue
            start = end
            break
        else:
            start += 1


class _Unanswered(Exception):
    """What a substitution prints is known only by running it."""


class _Broken(Exception):
    """`break` was met."""


class _Interpreter:
    def __init__(self, state: State) -> None:
        self.state = state
        self.expansion = Expansion(state, self._substituted)
        self.builtins: dict[str, Callable[[list[str]], None]] = {
            "shift": self._shift,
            "unset": self._unset,
            "break": self._break,
            "source": self._source,
            ".": self._source,
        }

    def run(self, command: grammar.Command) -> bool:
        """Follow a command; whether it succeeds."""
        if isinstance(command, grammar.Simple):
            return self._simple(command)
        if isinstance(command, grammar.Sequence):
            return self._sequence(command)
        if isinstance(command, grammar.Pipeline):
            return self._pipeline(command)
        if isinstance(command, grammar.Negation):
            return not self.run(command.command)
        if isinstance(command, grammar.If | grammar.Case):
            return self._if(command) if isinstance(command, grammar.If) else self._case(command)
        if isinstance(command, grammar.For | grammar.While):
            return self._for(command) if isinstance(command, grammar.For) else self._while(command)
        if isinstance(command, grammar.Test):
            return self._holds(self._terms(command))
        if isinstance(command, grammar.Calculation):
            return self.expansion.arithmetic(command.expression) not in ("0", UNKNOWN)
        self.state.functions[command.name] = command.body
        return True

    def _sequence(self, sequence: grammar.Sequence) -> bool:
        succeeds = True
        for join, command in zip(sequence.joins, sequence.commands, strict=True):
            if (join == "&&" and not succeeds) or (join == "||" and succeeds):
                continue
            succeeds = self.run(command)
        return succeeds

    def _pipeline(self, pipeline: grammar.Pipeline) -> bool:
        return [self.run(command) for command in pipeline.commands][-1]

    def _if(self, command: grammar.If) -> bool:
        for condition, body in command.branches:
            if self.run(condition):
                return self.run(body)
        return self.run(command.otherwise)

    def _case(self, command: grammar.Case) -> bool:
        subject = self.expansion.text(command.subject)
        for patterns, body in command.branches:
            if any(fnmatch.fnmatchcase(subject, self.expansion.text(pattern)) for pattern in patterns):
                return self.run(body)
        return True

    def _for(self, command: grammar.For) -> bool:
        values = self.state.arguments if command.values is None else self.expansion.fields(command.values)
        for value in list(values)[:MAX_ROUNDS]:
            self.state.variables[command.name] = value
            try:
                self.run(command.body)
            except _Broken:
                break
        return True

    def _while(self, command: grammar.While) -> bool:
        for _ in range(MAX_ROUNDS):
            if self.run(command.condition) == command.is_until:
                break
            try:
                self.run(command.body)
            except _Broken:
                break
        return True

    def _simple(self, command: grammar.Simple) -> bool:
        words = self.expansion.fields(command.words)
        before = dict(self.state.variables) if words else None
        for assignment in command.assignments:
            self._assign(assignment)
        if not words:
            return True
        try:
            return self._called(words, command)
        finally:
            if before is not None and command.assignments:
                self.state.variables = before

    def _called(self, words: list[str], command: grammar.Simple) -> bool:
        name, rest = words[0], words[1:]
        if name in TESTS:
            return self._holds(rest[:-1] if name == "[" else rest)
        if name in self.state.functions:
            return self._function(name, rest)
        if script := _inner_script(words):
            return self._nested(script)
        if name in DECLARING:
            self._declare(command.words[1:])
        elif name in self.builtins:
            self.builtins[name](rest)
        elif name not in BUILTINS:
            self.state.ran.append(Ran(tuple(words), command.line))
        return name != "false"

    def _shift(self, words: list[str]) -> None:
        del self.state.arguments[: int(words[0]) if words and words[0].isdigit() else 1]

    def _unset(self, words: list[str]) -> None:
        for each in words:
            self.state.variables.pop(each, None)

    def _break(self, words: list[str]) -> None:
        raise _Broken

    def _source(self, words: list[str]) -> None:
        self.state.remark(f"source {' '.join(words)} is not read: what it sets is not known")

    def _function(self, name: str, arguments: list[str]) -> bool:
        outer, self.state.arguments = self.state.arguments, arguments
        try:
            return self._nested(self.state.functions[name])
        finally:
            self.state.arguments = outer

    def _nested(self, inner: str | grammar.Sequence) -> bool:
        """Follow the body of a function or the text of an `eval`, as deep as a script reasonably goes."""
        if self.state.depth >= MAX_DEPTH:
            return True
        self.state.depth += 1
        try:
            return self.run(grammar.parsed(inner) if isinstance(inner, str) else inner)
        finally:
            self.state.depth -= 1

    def _declare(self, words: Iterable[Word]) -> None:
        for word in words:
            if grammar.is_assignment(word):
                self._assign(word)

    def _assign(self, word: Word) -> None:
        text = self.expansion.text(word)
        match = _NAME.match(text)
        if match is None:
            return
        name, index, adds = match.group(1), match.group(2), bool(match.group(3))
        if word.array is not None:
            entries = self.expansion.fields(word.array)
            keyed = [match.groups() for each in entries if (match := _KEYED.fullmatch(each))]
            if keyed and len(keyed) == len(entries):
                self.state.variables[name] = {str(key): str(value) for key, value in keyed}
            else:
                self.state.variables[name] = [*self.state.texts(name), *entries] if adds else entries
        elif index is not None:
            self._assign_entry(name, index, text[match.end() :])
        else:
            before = (self.state.text(name) or "") if adds else ""
            self.state.variables[name] = before + text[match.end() :]

    def _assign_entry(self, name: str, index: str, text: str) -> None:
        entries = self.state.texts(name)
        place = self.expansion.arithmetic(index)
        if place.isdigit() and int(place) < len(entries):
            entries[int(place)] = text
        else:
            entries.append(text)
        self.state.variables[name] = entries

    def _terms(self, test: grammar.Test) -> list[str]:
        return [term.text if isinstance(term, Operator) else self.expansion.text(term) for term in test.terms]

    def _holds(self, terms: list[str]) -> bool:
        return holds(terms, lambda name: name in self.state.variables)

    def _substituted(self, script: str) -> str:
        """The output of `$(script)`, where it needs no running."""
        inner = _Answering(self.state, script)
        return inner.output()


class _Answering(_Interpreter):
    """Follows the script of a substitution: the first command whose output is known gives it.

    Here a command that is not known fails, so that `probe && echo yes || echo no` says no.
    """

    def __init__(self, outer: State, script: str) -> None:
        inner = State(dict(outer.variables), list(outer.arguments), outer.functions, script=outer.script)
        inner.depth = outer.depth + 1
        super().__init__(inner)
        self.outer = outer
        self.script = script
        self.said: list[str] = []

    def output(self) -> str:
        if self.state.depth >= MAX_DEPTH:
            return UNKNOWN
        with suppress(_Unanswered):
            self.run(grammar.parsed(self.script))
            if self.said:
                return "\n".join(self.said).rstrip("\n")
        self.outer.remark(f"$({self.script.strip()}) is not run: its output is not known")
        return UNKNOWN

    def _pipeline(self, pipeline: grammar.Pipeline) -> bool:
        raise _Unanswered

    def _called(self, words: list[str], command: grammar.Simple) -> bool:
        name = words[0]
        if name in self.state.functions or name in TESTS or name in DECLARING:
            return super()._called(words, command)
        if name == "cd":
            self.state.variables["PWD"] = words[-1] if len(words) > 1 else from_environment("HOME")
        elif name not in SILENT:
            said = answer(words, self.state.text("PWD") or from_environment("PWD"))
            if said is None:
                return False
            self.said.append(said)
        return True


def _inner_script(words: list[str]) -> str | None:
    """The script of `eval ...` and of `bash -c '...'`, wherever it stands in a command."""
    if words[0] == "eval":
        return " ".join(words[1:])
    for place, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", words[place + 1]):
            return words[place + 2]
    return None
