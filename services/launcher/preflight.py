"""What can be found out before anything starts: tasksets, workflows and models that are not there."""

from pathlib import Path

from services.config.errors import Problem
from services.config.tree import RunConfig
from services.rollout.errors import RolloutError
from services.rollout.plugins import load_plugins
from services.rollout.tasksets import open_taskset
from services.rollout.workflows import workflow_named


def problems(config: RunConfig) -> list[Problem]:
    """Everything that would stop a service of this mode soon after its start."""
    return [*_model_problems(config), *(_data_problems(config) if config.mode != "train" else [])]


def _model_problems(config: RunConfig) -> list[Problem]:
    """A model path that means a directory, where there is none. A name of two parts is looked up on a hub later."""
    path = Path(config.model.model_path).expanduser()
    is_local = config.model.model_path.startswith((".", "/", "~")) or len(path.parts) > 2
    if config.rollout_model.engine_type == "fake" or not is_local or path.is_dir():
        return []
    return [
        Problem(
            "model.model_path",
            f"model.model_path={config.model.model_path}: there is no such directory; `trinity prepare` makes the "
            "quickstart's model",
        )
    ]


def _data_problems(config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    try:
        load_plugins([Path(directory) for directory in config.plugin_dirs])
    except RolloutError as error:
        return [Problem("plugin_dirs", str(error))]
    tasksets = config.eval_tasksets if config.mode == "bench" else [*config.tasksets, *config.eval_tasksets]
    for taskset in tasksets:
        try:
            open_taskset(taskset)
            workflow_named(taskset.default_workflow_type or "")
        except RolloutError as error:
            found.append(Problem(f"buffer.explorer_input: {taskset.name}", str(error)))
    return found
