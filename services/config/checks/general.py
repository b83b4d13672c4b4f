"""What must hold between keys before anything starts; every check is a pure function, and all failures are told."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from services.config.algorithms.types import ALGORITHM_TYPES
from services.config.checks.algorithm import ALGORITHM_CHECKS
from services.config.checks.allocation import ALLOCATION_CHECKS
from services.config.checks.auxiliary import AUXILIARY_CHECKS
from services.config.checks.lora import LORA_CHECKS
from services.config.checks.monitor import MONITOR_CHECKS
from services.config.checks.pipeline import PIPELINE_CHECKS
from services.config.checks.reuse import REUSE_CHECKS
from services.config.checks.rollout_correction import ROLLOUT_CHECKS
from services.config.checks.rows import ROW_CHECKS
from services.config.checks.stores import STORE_CHECKS
from services.config.checks.tasksets import TASKSET_CHECKS
from services.config.checks.trainer import TRAINER_CHECKS
from services.config.errors import Problem
from services.config.keys import get
from services.config.retention import retention
from services.config.spelling import nearest
from services.config.tree import RunConfig
from services.rollout.config import TasksetConfig

AT_LEAST: dict[str, int] = {
    "algorithm.optimizer.total_training_steps": 1,
    "algorithm.repeat_times": 1,
    "buffer.batch_size": 1,
    "buffer.total_epochs": 1,
    "buffer.total_steps": 1,
    "buffer.train_batch_size": 0,
    "cluster.gpu_per_node": 0,
    "cluster.node_num": 0,
    "cluster.trainer_ranks": 1,
    "explorer.dynamic_timeout.warmup_min_steps": 0,
    "explorer.eval_interval": 1,
    "explorer.max_retry_times": 0,
    "explorer.rollout_model.data_parallel_size": 1,
    "explorer.rollout_model.engine_num": 1,
    "explorer.rollout_model.pipeline_parallel_size": 1,
    "explorer.rollout_model.tensor_parallel_size": 1,
    "explorer.runner_per_model": 1,
    "synchronizer.max_deliver": 1,
    "synchronizer.max_staleness": 0,
    "synchronizer.sync_interval": 1,
    "synchronizer.sync_offset": 0,
    "trainer.critic_warmup": 0,
    "trainer.max_token_len_per_gpu": 1,
    "trainer.save_interval": 0,
    "trainer.total_steps": 1,
    "trainer.ulysses_sequence_parallel_size": 1,
}
ABOVE_ZERO = (
    "algorithm.optimizer.lr",
    "algorithm.optimizer.num_cycles",
    "bus.connect_timeout",
    "bus.dedupe_window",
    "bus.max_experience_bytes",
    "bus.max_payload_bytes",
    "bus.spill_bytes",
    "explorer.dynamic_timeout.ratio",
    "explorer.leave_timeout",
    "explorer.max_timeout",
    "synchronizer.heartbeat_interval",
    "synchronizer.lease_ttl",
    "synchronizer.sync_timeout",
    "synchronizer.task_lease",
    "trainer.grad_clip",
)
ROLLOUT_DTYPES = ("auto", "bfloat16", "float16", "float32", "half")
SAMPLING_MODES = ("both", "explore", "bench", "colocate")
DURATION = re.compile(r"always|[1-9]\d*(ms|s|m|h)")


def violations(config: RunConfig) -> list[Problem]:
    """Everything that keeps a resolved configuration from making sense."""
    return [
        problem
        for check in (
            *CHECKS,
            *ALGORITHM_CHECKS,
            *ROW_CHECKS,
            *STORE_CHECKS,
            *TASKSET_CHECKS,
            *TRAINER_CHECKS,
            *LORA_CHECKS,
            *ALLOCATION_CHECKS,
            *PIPELINE_CHECKS,
            *REUSE_CHECKS,
            *ROLLOUT_CHECKS,
            *AUXILIARY_CHECKS,
            *MONITOR_CHECKS,
        )
        for problem in check(config)
    ]


def _numbers_are_large_enough(config: RunConfig) -> Iterator[Problem]:
    tree = config.model_dump()
    for key, least in AT_LEAST.items():
        value = get(tree, key)
        if value is not None and value < least:
            yield Problem(key, f"{key}={value} is too small: use {least} or more")
    for key in ABOVE_ZERO:
        value = get(tree, key)
        if value <= 0:
            yield Problem(key, f"{key}={value} is too small: use a number above 0")


def _name_fits_a_directory(config: RunConfig) -> Iterator[Problem]:
    for key, value in (("project", config.project), ("name", config.name)):
        if value.strip() in ("", ".", "..") or "/" in value or "\\" in value or "\0" in value:
            message = f"{key}={value!r} cannot name a directory: use letters, digits, - and _ without slashes"
            yield Problem(key, message)


def _algorithm_is_known(config: RunConfig) -> Iterator[Problem]:
    name = config.algorithm.algorithm_type
    if name not in ALGORITHM_TYPES:
        meant = nearest(name, ALGORITHM_TYPES)
        advice = f"did you mean {meant}?" if meant else f"use one of {', '.join(ALGORITHM_TYPES)}"
        yield Problem("algorithm.algorithm_type", f"algorithm.algorithm_type={name} is not an algorithm: {advice}")


def _batches_hold_whole_groups(config: RunConfig) -> Iterator[Problem]:
    size, repeat_times = config.usual_batch_size, config.repeat_times
    if size < 1 or repeat_times < 1 or size % repeat_times == 0:
        return
    lower = size - size % repeat_times
    fitting = [number for number in (lower, lower + repeat_times) if number]
    given, mixing = f"train_batch_size={config.train_batch_size}", config.mixing
    if mixing is not None:
        given += f" less {config.expert_batch_size} expert rows"
        fitting = [mixing.whole(number) for number in fitting]
    choices = " or ".join(map(str, fitting))
    message = f"{given} is not a multiple of repeat_times={repeat_times}: use {choices}"
    yield Problem("buffer.train_batch_size", f"buffer.{message}")


def _lengths_fit_the_model(config: RunConfig) -> Iterator[Problem]:
    rollout = config.rollout_model
    places = (
        ("model", config.max_prompt_tokens, config.max_response_tokens, config.max_model_len),
        (
            "explorer.rollout_model",
            rollout.max_prompt_tokens or 0,
            rollout.max_response_tokens or 0,
            rollout.max_model_len or 0,
        ),
    )
    for section, prompt, response, room in places:
        fault = _misfit(section, prompt, response, room)
        if fault:
            yield Problem(f"{section}.max_model_len", fault)
            return


def _misfit(section: str, prompt: int, response: int, room: int) -> str | None:
    if response < 1:
        return f"{section}.max_response_tokens={response} is too small: use 1 or more"
    if prompt < 1:
        given = f"max_model_len={room} and max_response_tokens={response}"
        return f"{section}: {given} leave {prompt} tokens for a prompt: use a max_model_len above {response}"
    if prompt + response > room:
        total = prompt + response
        return (
            f"{section}.max_prompt_tokens={prompt} + max_response_tokens={response} = {total} do not fit in "
            f"max_model_len={room}: use a max_model_len of {total} or more"
        )
    return None


def _model_is_named(config: RunConfig) -> Iterator[Problem]:
    if not config.model.model_path:
        message = "model.model_path is empty: give a local directory or the name of a Hugging Face model"
        yield Problem("model.model_path", message)


def _tasks_are_given_once(config: RunConfig) -> Iterator[Problem]:
    given = config.buffer.explorer_input
    key = "buffer.explorer_input"
    if given.taskset and given.tasksets:
        yield Problem(f"{key}.taskset", f"{key} has both taskset and tasksets: move the first into the second")
    if config.mode in ("both", "explore", "colocate") and not config.tasksets:
        yield Problem(key, f"mode={config.mode} explores, but there is no task: set {key}.taskset (or tasksets)")
    if config.mode == "bench" and not config.eval_tasksets:
        yield Problem(key, f"mode=bench evaluates, but there is nothing to evaluate on: set {key}.eval_tasksets")


def _tasksets_are_told_apart(config: RunConfig) -> Iterator[Problem]:
    for kind, tasksets in (("tasksets", config.tasksets), ("eval_tasksets", config.eval_tasksets)):
        counts = Counter(taskset.name for taskset in tasksets)
        for name in sorted(name for name, count in counts.items() if count > 1):
            key = f"buffer.explorer_input.{kind}"
            yield Problem(key, f"{key} holds {counts[name]} tasksets named {name}: give each its own name")


def _tasksets_can_be_read(config: RunConfig) -> Iterator[Problem]:
    for key, taskset in _tasksets_by_key(config):
        if not taskset.path and config.mode in SAMPLING_MODES:
            what = "a generator's name" if taskset.storage_type == "reasoning_gym" else "a file or a data set"
            yield Problem(f"{key}.path", f"{key}.path is missing (taskset {taskset.name}): give {what}")
        if taskset.is_eval and (taskset.repeat_times or 0) < 1:
            message = f"{key}.repeat_times={taskset.repeat_times} is too small: use 1 or more"
            yield Problem(f"{key}.repeat_times", message)


def _sampling_is_possible(config: RunConfig) -> Iterator[Problem]:
    model, rollout = config.model, config.explorer.rollout_model
    given: list[tuple[str, float | None, float | None]] = [("model", model.temperature, model.top_p)]
    if (rollout.temperature, rollout.top_p) != (model.temperature, model.top_p):
        given.append(("explorer.rollout_model", rollout.temperature, rollout.top_p))
    for key, taskset in _tasksets_by_key(config):
        given.append((f"{key}.rollout_args", taskset.rollout_args.temperature, taskset.rollout_args.top_p))
    for section, temperature, top_p in given:
        if temperature is not None and temperature < 0:
            message = f"{section}.temperature={temperature} is negative: use 0 (always the likeliest token) or more"
            yield Problem(f"{section}.temperature", message)
        if top_p is not None and not 0 < top_p <= 1:
            yield Problem(f"{section}.top_p", f"{section}.top_p={top_p} is no share: use a number above 0, at most 1")


def _responses_leave_room(config: RunConfig) -> Iterator[Problem]:
    room = config.rollout_model.max_model_len or config.max_model_len
    for section, taskset in _tasksets_by_key(config):
        max_tokens = taskset.rollout_args.max_tokens
        if max_tokens is not None and not 1 <= max_tokens < room:
            key = f"{section}.rollout_args.max_tokens"
            yield Problem(key, f"{key}={max_tokens} does not fit: use 1 to {room - 1} (max_model_len={room})")


def _staleness_bound_can_be_met(config: RunConfig) -> Iterator[Problem]:
    pace = config.synchronizer
    needed = pace.sync_interval - 1 + (pace.sync_offset if pace.sync_style == "fixed" else 0)
    if pace.max_staleness is not None and 0 <= pace.max_staleness < needed:
        message = (
            f"synchronizer.max_staleness={pace.max_staleness} cannot be met with sync_interval={pace.sync_interval} "
            f"and sync_offset={pace.sync_offset}: use {needed} or more, or sync more often"
        )
        yield Problem("synchronizer.max_staleness", message)


def _over_rollout_has_a_free_pace(config: RunConfig) -> Iterator[Problem]:
    ratio = config.explorer.over_rollout.ratio
    if not 0 <= ratio < 1:
        message = f"explorer.over_rollout.ratio={ratio} is no share of a batch: use 0 or more, below 1"
        yield Problem("explorer.over_rollout.ratio", message)
    elif ratio > 0 and config.synchronizer.sync_style == "fixed":
        message = (
            f"explorer.over_rollout.ratio={ratio} and synchronizer.sync_style=fixed contradict each other: "
            "use sync_style=dynamic_by_explorer, or ratio=0"
        )
        yield Problem("explorer.over_rollout.ratio", message)


def _times_follow_each_other(config: RunConfig) -> Iterator[Problem]:
    pace = config.synchronizer
    if pace.member_timeout <= pace.heartbeat_interval:
        message = (
            f"synchronizer.member_timeout={pace.member_timeout} is not above heartbeat_interval="
            f"{pace.heartbeat_interval}: use {5 * pace.heartbeat_interval:g} or so, or every member seems lost"
        )
        yield Problem("synchronizer.member_timeout", message)
    if pace.keep_versions == 0 or pace.keep_versions < -1:
        message = f"synchronizer.keep_versions={pace.keep_versions} keeps nothing: use 1 or more, or -1 for all"
        yield Problem("synchronizer.keep_versions", message)


def _messages_fit_the_bus(config: RunConfig) -> Iterator[Problem]:
    bus = config.bus
    if bus.spill_bytes > bus.max_payload_bytes:
        message = (
            f"bus.spill_bytes={bus.spill_bytes} is above max_payload_bytes={bus.max_payload_bytes}: "
            f"use {bus.max_payload_bytes // 2} or so, or the bus refuses large groups"
        )
        yield Problem("bus.spill_bytes", message)
    if not DURATION.fullmatch(bus.sync_interval):
        message = f"bus.sync_interval={bus.sync_interval} is no interval: use always, or a time such as 10s"
        yield Problem("bus.sync_interval", message)


def _gpus_suffice(config: RunConfig) -> Iterator[Problem]:
    total, taken = config.cluster.gpus, config.explorer_gpus
    if total < 1 or config.mode not in ("both", "explore", "bench", "serve"):
        return
    trains_here = config.mode == "both" and not config.model.tinker.enable
    room = total - 1 if trains_here else total
    if taken > room:
        left = " and the trainer needs at least one" if trains_here else ""
        message = (
            f"the explorer's engines take {taken} GPUs (engine_num * tensor_parallel_size, auxiliary_models included) "
            f"but the cluster has {total}{left}: reduce explorer.rollout_model.engine_num or add nodes"
        )
        yield Problem("explorer.rollout_model.engine_num", message)


def _dtypes_agree(config: RunConfig) -> Iterator[Problem]:
    dtype, key = config.explorer.rollout_model.dtype, "explorer.rollout_model.dtype"
    if dtype not in ROLLOUT_DTYPES:
        meant = nearest(dtype, ROLLOUT_DTYPES) or "bfloat16"
        yield Problem(key, f"{key}={dtype} is not a dtype of an engine: did you mean {meant}?")
    elif dtype == "float32" and config.trainer.weights_dtype == "bf16":
        message = (
            f"trainer.weights_dtype=bf16 is coarser than {key}=float32, which would sample from rounded weights: "
            "use weights_dtype=fp32, or dtype=bfloat16"
        )
        yield Problem("trainer.weights_dtype", message)


def _trainer_config_is_given_once(config: RunConfig) -> Iterator[Problem]:
    if config.trainer.trainer_config and config.trainer.trainer_config_path:
        message = "trainer.trainer_config and trainer.trainer_config_path exclude each other: keep one of them"
        yield Problem("trainer.trainer_config_path", message)


def _tasksets_by_key(config: RunConfig) -> Iterator[tuple[str, TasksetConfig]]:
    """The complete tasksets with the dotted keys of their sections."""
    section = "buffer.explorer_input"
    single = config.buffer.explorer_input.taskset is not None
    for index, taskset in enumerate(config.tasksets):
        yield (f"{section}.taskset" if single else f"{section}.tasksets[{index}]"), taskset
    for index, taskset in enumerate(config.eval_tasksets):
        yield f"{section}.eval_tasksets[{index}]", taskset


def _retention_is_a_rule(config: RunConfig) -> Iterator[Problem]:
    try:
        retention(config.buffer.retain, config.bus.max_experience_bytes)
    except ValueError as error:
        yield Problem("buffer.retain", f"buffer.retain={error}")


def _replay_has_a_source(config: RunConfig) -> Iterator[Problem]:
    replay = config.replay
    if replay is None:
        return
    if replay.source == config.run_name:
        message = f"replay.source={replay.source} is the run itself: a replay is a run of its own; give it another name"
        yield Problem("replay.source", message)
    if config.mode != "train":
        yield Problem("replay", f"replay with mode={config.mode}: a replay only trains; set mode=train")
    if replay.to_sequence is not None and replay.to_sequence < replay.from_sequence:
        message = f"replay.to_sequence={replay.to_sequence} lies before replay.from_sequence={replay.from_sequence}"
        yield Problem("replay.to_sequence", f"{message}: nothing would be read")
    if replay.follow and replay.to_sequence is not None:
        message = "replay.follow reads on as long as the source lives, and replay.to_sequence ends it: keep one of them"
        yield Problem("replay.follow", message)


def _the_bus_can_be_joined(config: RunConfig) -> Iterator[Problem]:
    bus = config.bus
    if bus.replicas not in (1, 3):
        yield Problem("bus.replicas", f"bus.replicas={bus.replicas}: use 1, or 3 with a cluster of three nodes")
    if (bus.tls_cert is None) != (bus.tls_key is None):
        yield Problem("bus.tls_cert", "bus.tls_cert and bus.tls_key belong together: set both, or neither")
    if bus.url is not None or not (config.mode in ("both", "bench") or config.experience_source == "rows"):
        return
    own = "without bus.url the launcher starts a bus of its own on this machine alone"
    if bus.replicas == 3:
        yield Problem("bus.replicas", f"bus.replicas=3 needs a cluster, and {own}: set bus.url")
    for name in ("credentials", "tls_ca", "tls_cert"):
        if getattr(bus, name) is not None:
            yield Problem(f"bus.{name}", f"bus.{name} is for a bus that is there, and {own}: set bus.url")


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _numbers_are_large_enough,
    _name_fits_a_directory,
    _algorithm_is_known,
    _batches_hold_whole_groups,
    _lengths_fit_the_model,
    _model_is_named,
    _tasks_are_given_once,
    _tasksets_are_told_apart,
    _tasksets_can_be_read,
    _sampling_is_possible,
    _responses_leave_room,
    _staleness_bound_can_be_met,
    _over_rollout_has_a_free_pace,
    _times_follow_each_other,
    _messages_fit_the_bus,
    _gpus_suffice,
    _dtypes_agree,
    _trainer_config_is_given_once,
    _retention_is_a_rule,
    _replay_has_a_source,
    _the_bus_can_be_joined,
)
