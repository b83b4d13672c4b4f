"""The user's own workflows and rewards: every Python file of a directory that was named, and none that was not; and
those of installed packages that this process's own configuration names by their dotted path.

What a message names is looked up among these alone: nothing is imported because a message says so.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from services.config.tree import RunConfig
from services.rollout.errors import PluginError, UnknownName
from services.rollout.rewards import REWARDS
from services.rollout.workflows import WORKFLOWS, register_agent

log = structlog.get_logger(__name__)

PREFIX = "trinity_plugin_"


def load_own(config: RunConfig) -> None:
    """Everything of the user's that the run's configuration names: directories, and dotted paths of its tasksets.

    Raises:
        PluginError: a directory is not there, or a file or a module cannot be imported.
        UnknownName: a module has nothing of that name, or it is no workflow or reward.
    """
    load_plugins([Path(directory) for directory in config.plugin_dirs])
    shared = config.buffer.explorer_input
    tasksets = (*config.tasksets, *config.eval_tasksets)
    workflows = [taskset.default_workflow_type for taskset in tasksets]
    rewards = [taskset.default_reward_fn_type for taskset in tasksets]
    for name in (*workflows, shared.default_workflow_type, shared.default_eval_workflow_type):
        if name and "." in name and name not in WORKFLOWS:
            _add_workflow(name)
    for name in (*rewards, shared.default_reward_fn_type):
        if name and "." in name and name not in REWARDS:
            _add_reward(name)


def _add_workflow(name: str) -> None:
    found = _imported("workflow", name)
    if inspect.iscoroutinefunction(found):
        register_agent(name)(found)
    elif callable(found) and (hasattr(found, "episode") or hasattr(found, "group_episodes")):
        WORKFLOWS[name] = found
    else:
        raise UnknownName("workflow", name, [], "it is no class with episode or group_episodes, and no agent")


def _add_reward(name: str) -> None:
    found = _imported("reward", name)
    if not callable(found) or inspect.isclass(found):
        raise UnknownName("reward", name, [], "it is no function")
    REWARDS[name] = found


def _imported(kind: str, name: str) -> Any:
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises
        raise PluginError(module_name, f"{type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise UnknownName(kind, name, [f"{module_name}.{known}" for known in vars(module) if not known.startswith("_")])
    return getattr(module, attribute)


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
