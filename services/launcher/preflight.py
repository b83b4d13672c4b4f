"""What can be found out before anything starts: tasksets, workflows and models that are not there."""

from pathlib import Path

from services.config.errors import Problem
from services.config.operators import KEY as OPERATORS
from services.config.tree import RunConfig
from services.inference.auxiliary import AuxiliaryFailed
from services.inference.build import build_auxiliaries
from services.rollout.errors import AuxiliaryMissing, RolloutError
from services.rollout.plugins import load_own, load_plugins
from services.rollout.tasksets import open_taskset
from services.rollout.workflows import workflow_named
from services.store.build import fault, stored_rows
from services.store.errors import StoreError
from services.store.place import place_of
from services.store.sinks import BUFFER, named, source
from services.trainer.offline.rows import faults
from services.trainer.pipeline import build as pipeline


def problems(config: RunConfig) -> list[Problem]:
    """Everything that would stop a service of this mode soon after its start."""
    return [
        *_model_problems(config),
        *(_auxiliary_problems(config) if config.mode not in ("train", "serve") else []),
        *(_data_problems(config) if config.mode not in ("train", "serve") else []),
        *(_row_problems(config) if config.mode in ("both", "train") else []),
        *(_pipeline_problems(config) if config.mode in ("both", "train", "serve") else []),
        *_store_problems(config),
    ]


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


def _auxiliary_problems(config: RunConfig) -> list[Problem]:
    """An auxiliary model behind an address that nobody has set."""
    try:
        build_auxiliaries(config)
    except AuxiliaryFailed as error:
        return [Problem("explorer.auxiliary_models", f"explorer.auxiliary_models: {error}")]
    return []


def _row_problems(config: RunConfig) -> list[Problem]:
    """Rows of data, of which all but the tokens is checked: they are trained on, or mixed in."""
    section, mixing = "buffer.trainer_input", config.mixing
    given = config.buffer.trainer_input
    found: list[Problem] = []
    if config.experience_source == "rows" and given.experience_buffer and config.row_schema:
        key = f"{section}.experience_buffer"
        found += [Problem(key, str(fault)) for fault in faults(key, given.experience_buffer, config.row_schema)]
    if mixing is not None and config.expert_batch_size:
        key = f"{section}.auxiliary_buffers.{mixing.sft_dataset_name}"
        buffer = given.auxiliary_buffers[mixing.sft_dataset_name]
        found += [Problem(key, str(fault)) for fault in faults(key, buffer, "sft")]
    return found


def _pipeline_problems(config: RunConfig) -> list[Problem]:
    """Operators that are not there, or do not take their arguments. What plug-ins there are is known by now, or is
    told as a problem of its own."""
    try:
        load_plugins([Path(directory) for directory in config.plugin_dirs])
    except RolloutError as error:
        return [Problem("plugin_dirs", str(error))] if config.mode != "both" else []
    return [Problem(OPERATORS, f"{OPERATORS}: {words}") for words in pipeline.problems(config)]


def _store_problems(config: RunConfig) -> list[Problem]:
    """Stores that cannot be written to, or read."""
    found = [
        Problem(each.key, f"{each.key}: {words}") for each in named(config) if (words := fault(place_of(each.path)))
    ]
    buffer = config.buffer.trainer_input.experience_buffer
    if config.experience_source == "store" and buffer is not None:
        try:
            next(stored_rows(source(config), buffer.subset_name), None)
        except StoreError as error:
            found.append(Problem(f"{BUFFER}.path", str(error)))
    return found


def _data_problems(config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    try:
        load_own(config)
    except RolloutError as error:
        return [Problem("plugin_dirs", str(error))]
    tasksets = config.eval_tasksets if config.mode == "bench" else [*config.tasksets, *config.eval_tasksets]
    for taskset in tasksets:
        try:
            open_taskset(taskset)
            workflow = workflow_named(taskset.default_workflow_type or "")
            if getattr(workflow, "needs_auxiliary_model", False) and not config.auxiliary_models:
                raise AuxiliaryMissing(None, ())
        except RolloutError as error:
            found.append(Problem(f"buffer.explorer_input: {taskset.name}", str(error)))
    return found
