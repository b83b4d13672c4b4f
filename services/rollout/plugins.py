"""The user's own workflows and rewards: every Python file of a directory that was named, and none that was not."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import structlog

from services.rollout.errors import PluginError

log = structlog.get_logger(__name__)

PREFIX = "trinity_plugin_"


def load_plugins(directories: Iterable[Path]) -> tuple[str, ...]:
    """Import every `.py` file of `directories`, in the order of their names. Returns the names of the modules.

    A plug-in registers what it brings by `register_workflow` and `register_reward`. A file is imported once a process.

    Raises:
        PluginError: a directory is not there, or a file cannot be imported.
    """
    names: list[str] = []
    for directory in directories:
        if not directory.is_dir():
            raise PluginError(directory, "is not a directory")
        names.extend(_load(file) for file in sorted(directory.glob("*.py")))
    return tuple(names)


def _load(file: Path) -> str:
    name = PREFIX + file.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(loaded.__file__ or "") == file.resolve():
            return name
        raise PluginError(file, f"has the same name as {loaded.__file__}: rename one of them")
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise PluginError(file, "is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PluginError(file, f"{type(error).__name__}: {error}") from error
    log.info("plugin_loaded", file=str(file))
    return name
