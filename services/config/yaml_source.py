"""A YAML file with its lines: which key stands where, and which keys stand twice."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from services.config.errors import ConfigError, Problem
from services.config.keys import Part, joined

MAX_DEPTH = 32


class YamlSource:
    """The text of a configuration file; `lines` maps dotted keys to line numbers from 1."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.text = _read(path)
        root = self._composed()
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise self._refused("holds no keys: a configuration is a mapping, such as `mode: both`")
        self.lines: dict[str, int] = {}
        repeated = list(self._index(root, ())) if root else []
        if repeated:
            raise ConfigError(self.name, repeated)

    def where(self, key: str) -> str:
        """`file:line` of a key, or of the nearest section that holds it."""
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return f"{self.name}:{self.lines[key]}" if key else self.name

    def _composed(self) -> yaml.Node | None:
        try:
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{self.name}:{mark.line + 1}:{mark.column + 1}" if mark else self.name
            raise self._refused(f"is not YAML: {error.problem or error.context}", where) from error
        except yaml.YAMLError as error:
            raise self._refused(f"is not YAML: {error}") from error

    def _index(self, node: yaml.Node, path: tuple[Part, ...]) -> Iterator[Problem]:
        """Note the line of every key below `node`; the problems are keys that stand twice."""
        if len(path) > MAX_DEPTH:
            raise self._refused(f"is nested more than {MAX_DEPTH} deep: does an anchor (&) hold its own alias (*)?")
        children: list[tuple[Part, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            children = [(name.value, name, child) for name, child in node.value if isinstance(name, yaml.ScalarNode)]
        elif isinstance(node, yaml.SequenceNode):
            children = [(index, child, child) for index, child in enumerate(node.value)]
        seen: set[Part] = set()
        for part, name, child in children:
            key, line = joined((*path, part)), name.start_mark.line + 1
            if part in seen:
                first = self.lines[key]
                message = f"{key} is given twice, first at line {first}: remove one of them"
                yield Problem(key, message, f"{self.name}:{line}")
            seen.add(part)
            self.lines.setdefault(key, line)
            yield from self._index(child, (*path, part))

    def _refused(self, what: str, where: str = "") -> ConfigError:
        return ConfigError(self.name, [Problem("", f"the file {what}", where)])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = Problem("", f"the file is not UTF-8 text (byte {error.start}): save it as UTF-8")
    except FileNotFoundError:
        problem = Problem("", "there is no such file: check the path given to --config")
    except OSError as error:
        problem = Problem("", f"the file cannot be read: {error.strerror}")
    raise ConfigError(str(path), [problem])
