"""What can be found out before anything starts: tasksets, workflows and models that are not there."""

import os
from pathlib import Path

from services.config.allocation import allocation
from services.config.errors import Problem
from services.config.operators import KEY as OPERATORS
from services.config.tree import RunConfig
from services.inference.auxiliary import AuxiliaryFailed
from services.inference.build import build_auxiliaries
from services.monitor.build import fault as record_fault
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
        *(_resume_problems(config) if config.mode in ("both", "train") else []),
        *(_pipeline_problems(config) if config.mode in ("both", "train", "serve") else []),
        *_store_problems(config),
        *_record_problems(config),
        *_ray_problems(config),
    ]


def _model_problems(config: RunConfig) -> list[Problem]:
    """Paths of models that mean directories, where there are none."""
    paths = {"model.model_path": config.model.model_path} if config.rollout_model.engine_type != "fake" else {}
    trains = config.mode in ("both", "train") and config.trainer.trainer_type != "fake"
    if trains and config.algorithm_type.uses_critic:
        paths["model.critic_model_path"] = config.model.critic_model_path
    if config.mode not in ("train", "serve"):
        paths |= {
            f"explorer.auxiliary_models[{place}].model_path": model.model_path or ""
            for place, model in enumerate(config.explorer.auxiliary_models)
            if model.is_local
        }
    hint = "; `trinity prepare` makes the quickstart's model"
    return [
        Problem(key, f"{key}={path}: there is no such directory{hint if key == 'model.model_path' else ''}")
        for key, path in paths.items()
        if path and _is_absent(path)
    ]


def _is_absent(model_path: str) -> bool:
    """Whether it means a directory that is not there. A name of two parts is looked up on a hub later."""
    path = Path(model_path).expanduser()
    is_local = model_path.startswith((".", "/", "~")) or len(path.parts) > 2
    return is_local and not path.is_dir()


def _resume_problems(config: RunConfig) -> list[Problem]:
    """A checkpoint to begin from that is not there, or that is this run's own."""
    key, given = "trainer.resume_from_path", config.trainer.resume_from_path
    if not given:
        return []
    path, told = Path(given).expanduser().absolute(), f"{key}={given}"
    if not (path / "actor").is_dir() or path.name.startswith("."):
        return [Problem(key, f"{told} is no checkpoint: name a directory global_step_N that holds actor/")]
    if path.parent == config.run_dir:
        return [Problem(key, f"{told} is of this very run: leave it out, and give `trinity run --from-step`")]
    return []


def _auxiliary_problems(config: RunConfig) -> list[Problem]:
    """An auxiliary model behind an address that nobody has set."""
    try:
        build_auxiliaries(config)
    except AuxiliaryFailed as error:
        return [Problem("explorer.auxiliary_models", f"explorer.auxiliary_models: {error}")]
    return []


def _ray_problems(config: RunConfig) -> list[Problem]:
    """A trainer on several nodes, which would wait for GPUs that its own Ray does not have."""
    nodes = allocation(config).ranks_of_nodes
    begins_here = config.cluster.node_rank == next(iter(nodes), 0)
    if len(nodes) < 2 or not begins_here or os.environ.get("RAY_ADDRESS") or config.trainer.trainer_type == "fake":
        return []
    where = ", ".join(f"{ranks} on node {node}" for node, ranks in nodes.items())
    message = f"the trainer's ranks are on several nodes ({where}), and RAY_ADDRESS is not set: start Ray on them, as "
    return [Problem("cluster.node_num", f"{message}`trinity check --explain` says, and set RAY_ADDRESS here")]


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


def _record_problems(config: RunConfig) -> list[Problem]:
    """A record of the metrics that cannot be written, where the monitor is started here."""
    words = record_fault(config) if config.mode in ("both", "train") else None
    return [Problem("monitor.monitor_type", words)] if words else []


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
