"""`trainer.trainer_config_path`: a YAML file of veRL's keys, which becomes the `trainer_config` of its section."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from services.config.errors import ConfigError, Problem
from services.config.keys import get, joined, leaves, put
from services.config.yaml_source import YamlSource

PATH, INLINE = "trainer_config_path", "trainer_config"


def with_trainer_files(beside: str, tree: Mapping[str, Any], written: Mapping[str, str]) -> dict[str, str]:
    """Read the files that `tree` names into it, and return where all keys were written.

    A relative path is one from the directory of the configuration file `beside`, else from the working directory. Where
    both keys are given nothing is read: the checks refuse that.

    Raises:
        ConfigError: a file is not there or cannot be read.
    """
    origins = dict(written)
    for section in list(_sections(tree)):
        found = get(tree, section)
        path = found.get(PATH)
        if not isinstance(path, str) or not path or found.get(INLINE):
            continue
        key = f"{section}.{PATH}"
        file = YamlSource(_located(beside, path, key, origins.get(key, "")))
        put(found, INLINE, _read(file))
        found[PATH] = ""
        origins[key] = f"{file.name}, read into {INLINE}"
        for leaf, _ in leaves(found[INLINE]):
            origins[f"{section}.{joined((INLINE, *leaf))}"] = file.where(joined(leaf))
    return origins


def _sections(tree: Mapping[str, Any]) -> Iterator[str]:
    stages = tree.get("stages")
    numbers = range(len(stages)) if isinstance(stages, list) else ()
    for section in ("trainer", *(f"stages[{number}].trainer" for number in numbers)):
        try:
            if isinstance(get(tree, section), dict):
                yield section
        except (KeyError, TypeError):
            continue


def _located(beside: str, path: str, key: str, where: str) -> Path:
    places = [Path(beside).absolute().parent / Path(path).expanduser(), Path(path).expanduser().absolute()]
    for place in places:
        if place.is_file():
            return place
    looked = " and ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(beside, [Problem(key, f"{key}={path}: there is no such file: looked for {looked}", where)])


def _read(file: YamlSource) -> dict[str, Any]:
    try:
        found = OmegaConf.to_container(OmegaConf.create(file.text or "{}"), resolve=True)
    except OmegaConfBaseException as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(file.name, [Problem("", f"the file cannot be read: {line}")]) from error
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}
