"""Reading a configuration: YAML, environment and overrides become one checked tree, or one error with all problems."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from services.config.availability import notices
from services.config.checks.general import violations
from services.config.derive import derived, resolved
from services.config.errors import ConfigError, Problem
from services.config.explain import explained
from services.config.keys import Part, get, is_under, joined, leaves, put, split
from services.config.stages import NAME, STAGES, problems_of_names, staged, written_in
from services.config.tree import RunConfig
from services.config.verl.trainer_file import with_trainer_files
from services.config.yaml_source import YamlSource

OVERRIDE = "override"
ENVIRONMENT: dict[str, tuple[str, Callable[[str], object]]] = {
    "checkpoint_root_dir": ("TRINITY_CHECKPOINT_ROOT_DIR", str),
    "plugin_dirs": ("TRINITY_PLUGIN_DIRS", lambda text: [part for part in text.split(os.pathsep) if part]),
    "bus.url": ("TRINITY_BUS_URL", str),
    "bus.credentials": ("TRINITY_BUS_CREDENTIALS", str),
    "cluster.node_rank": ("TRINITY_NODE_RANK", str),
    "log.level": ("TRINITY_LOG_LEVEL", str),
    "log.save_dir": ("TRINITY_LOG_DIR", str),
}


@dataclass(frozen=True)
class Loaded:
    """A configuration that passed every check.

    `origins` tells of each dotted key where its value comes from: `file:line`, `override`, `environment VAR`,
    `default` or `derived: ...`. `notes` are sentences that a person should read before the run. `given` is the
    configuration before anything was derived. Of a file with `stages`, this is the first of them; `stages` holds all,
    each as if it were a file of its own.
    """

    source: str
    config: RunConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...]
    given: RunConfig
    stages: tuple["Loaded", ...] = ()


def load(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a YAML file, apply `a.b=c` overrides, and check everything; raises ConfigError with all problems."""
    source = YamlSource(Path(path))
    tree, written = _Reading(source, overrides).read()
    written = with_trainer_files(source.name, tree, written)
    given = _validated(source, tree, written)
    return _checked_stages(source, tree, written) if given.stages else _checked(source, given, written)


def _validated(source: YamlSource, tree: Mapping[str, Any], written: Mapping[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = [explained(details) for details in error.errors()]
        raise _located(source, problems, written) from error


def _checked_stages(source: YamlSource, tree: Mapping[str, Any], written: Mapping[str, str]) -> Loaded:
    """All stages, or one error with the problems of all."""
    problems, found = list(problems_of_names(tree)), []
    if problems:
        raise _located(source, problems, written)
    for number in range(len(tree[STAGES])):
        own = written_in(written, number)
        try:
            found.append(_checked(source, _validated(source, staged(tree, number), own), own))
        except ConfigError as error:
            name = tree[STAGES][number][NAME]
            problems += [replace(each, message=f"stage {name}: {each.message}") for each in error.problems]
    if problems:
        raise ConfigError(source.name, problems)
    return replace(found[0], stages=tuple(found))


def _checked(source: YamlSource, given: RunConfig, written: Mapping[str, str]) -> Loaded:
    """The configuration with nothing left open, or one error with all problems."""
    decisions = derived(given)
    config = resolved(given)
    problems = violations(config)
    if problems:
        raise _located(source, problems, written)
    origins = {joined(leaf): "default" for leaf, _ in leaves(config.model_dump())}
    origins |= {key: origin for key, origin in written.items() if key in origins}
    for decision in decisions:
        origins |= {key: f"derived: {decision.why}" for key in origins if is_under(key, decision.key)}
    return Loaded(source.name, config, origins, tuple(_notes(given, config)), given)


def _notes(given: RunConfig, config: RunConfig) -> Iterator[str]:
    asked, rounded = given.explorer.eval_interval, config.explorer.eval_interval
    if asked != rounded:
        yield (
            f"explorer.eval_interval={asked} is not a multiple of synchronizer.sync_interval="
            f"{config.synchronizer.sync_interval}: evaluating every {rounded} versions, which are announced"
        )
    yield from notices(config)


def _located(source: YamlSource, problems: Sequence[Problem], written: Mapping[str, str]) -> ConfigError:
    """The problems as one error, each with the place where its value was written."""

    def where(key: str) -> str:
        exact = [origin for other, origin in written.items() if is_under(other, key)]
        return exact[0] if exact else source.where(key) if key in source.lines else ""

    located = [Problem(problem.key, problem.message, problem.where or where(problem.key)) for problem in problems]
    return ConfigError(source.name, located)


class _Reading:
    """One reading of a file: what it says with interpolations resolved, and the origin of every value."""

    def __init__(self, source: YamlSource, overrides: Sequence[str]) -> None:
        self.source = source
        self.overrides = overrides
        self.overridden: list[str] = []
        self.from_environment: dict[str, str] = {}
        self.problems: list[Problem] = []

    def read(self) -> tuple[dict[str, Any], dict[str, str]]:
        document = self._document()
        for override in self.overrides:
            self._apply(document, override)
        tree: dict[str, Any] = self._plain(document, ())
        self._fill_from_environment(tree)
        if self.problems:
            raise ConfigError(self.source.name, self.problems)
        return tree, {joined(path): self._origin(joined(path)) for path, _ in leaves(tree) if path}

    def _document(self) -> DictConfig:
        try:
            document = OmegaConf.create(self.source.text)
        except OmegaConfBaseException as error:
            raise ConfigError(self.source.name, [Problem("", f"the file cannot be read: {error}")]) from error
        assert isinstance(document, DictConfig)
        return document

    def _apply(self, document: DictConfig, override: str) -> None:
        key, equals, text = override.partition("=")
        if not equals or not split(key):
            message = f"the override {override!r} is not KEY=VALUE: write for example buffer.batch_size=8"
            self.problems.append(Problem("", message, OVERRIDE))
            return
        try:
            key = _key_in(document, split(key))
            value = OmegaConf.from_dotlist([f"value={text}"])["value"]
            OmegaConf.update(document, key, value, force_add=True)
        except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            message = f"the override {override!r} cannot be applied: {_first_line(error)}"
            self.problems.append(Problem(key, message, OVERRIDE))
            return
        self.overridden.append(key)

    def _plain(self, node: DictConfig | ListConfig, path: tuple[Part, ...]) -> Any:
        """The node as plain dicts and lists, each interpolation resolved on its own so that all failures are found."""
        if isinstance(node, ListConfig):
            return [self._value(node, index, (*path, index)) for index in range(len(node))]
        return {str(name): self._value(node, name, (*path, str(name))) for name in node}

    def _value(self, node: DictConfig | ListConfig, part: Any, path: tuple[Part, ...]) -> Any:
        key = joined(path)
        try:
            if OmegaConf.is_interpolation(node, part):
                self._remember_variable(node, part, key)
            value = node[part]
        except MissingMandatoryValue:
            self._refuse(key, f"{key} is ???: give it a value")
        except OmegaConfBaseException as error:
            self._refuse(key, _interpolation_message(key, error))
        else:
            return self._plain(value, path) if isinstance(value, DictConfig | ListConfig) else value

    def _remember_variable(self, node: DictConfig | ListConfig, part: Any, key: str) -> None:
        raw = OmegaConf.to_container(node, resolve=False)
        assert isinstance(raw, dict | list)
        text = str(raw[part])
        variables = [piece.partition(",")[0].partition("}")[0].strip() for piece in text.split("${oc.env:")[1:]]
        present = [variable for variable in variables if variable in os.environ]
        if present:
            self.from_environment[key] = f"environment {', '.join(present)}"

    def _fill_from_environment(self, tree: dict[str, Any]) -> None:
        for key, (variable, parse) in ENVIRONMENT.items():
            text = os.environ.get(variable)
            if text and _is_absent(tree, key):
                put(tree, key, parse(text))
                self.from_environment[key] = f"environment {variable}"

    def _refuse(self, key: str, message: str) -> None:
        self.problems.append(Problem(key, message, self._origin(key)))

    def _origin(self, key: str) -> str:
        for known, origin in self.from_environment.items():
            if is_under(key, known):
                return origin
        if any(is_under(key, overridden) for overridden in self.overridden):
            return OVERRIDE
        return self.source.where(key)


def _key_in(document: DictConfig, parts: tuple[Part, ...]) -> str:
    """The dotted key of a path, in which numbers are indices of the lists that the document holds."""
    path: tuple[Part, ...] = ()
    for part in parts:
        node = OmegaConf.select(document, joined(path)) if path else document
        if isinstance(node, ListConfig) and str(part).isdigit():
            path = (*path, int(part))
        elif isinstance(part, int):
            raise ValueError(f"{joined(path)} holds no list to change: give all of it, as {joined(path)}=[...]")
        else:
            path = (*path, part)
    return joined(path)


def _is_absent(tree: dict[str, Any], key: str) -> bool:
    try:
        return get(tree, key) in (None, "")
    except KeyError:
        return True
    except TypeError:  # a section that is no mapping (refused later), or an empty one
        *way, _ = split(key)
        return get(tree, joined(tuple(way))) is None


def _interpolation_message(key: str, error: OmegaConfBaseException) -> str:
    text = _first_line(error)
    _, quoted, rest = text.partition("Environment variable '")
    if quoted:
        variable = rest.partition("'")[0]
        return f"{key} needs the environment variable {variable}: set it, or write ${{oc.env:{variable},DEFAULT}}"
    return f"{key} cannot be resolved: {text}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
