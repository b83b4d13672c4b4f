"""What Trinity-RFT's configuration can ask for and this version cannot do yet, and what it does another way."""

from collections.abc import Callable, Iterator

from services.config.checks.auxiliary import who_asks_the_reward_model
from services.config.checks.reuse import nothing_is_reused, the_pool_fits_the_stream
from services.config.explain import shown
from services.config.keys import get
from services.config.micro_batches import data_ranks
from services.config.schedule import schedule_steps, who_needs_a_total
from services.config.tree import RunConfig
from services.config.verl.keys import IDLE, OF_ALL_RANKS
from services.config.verl.optimizers import OPTIMIZERS
from services.config.verl.tree import explanation, given, said
from services.store.sinks import named

AVAILABLE: dict[str, tuple[object, ...]] = {
    "mode": ("both", "explore", "train", "bench", "serve"),
    "algorithm.sample_strategy": ("default", "warmup", "staleness_control", "mix"),
    "algorithm.enable_router_replay": (False,),
    "algorithm.optimizer.optimizer_type": tuple(OPTIMIZERS),
    "synchronizer.sync_method": ("checkpoint",),
    "model.tinker.enable": (False,),
    "model.external_model.enable": (False,),
    "explorer.rollout_model.engine_type": ("vllm", "vllm_async", "fake"),
    "explorer.rollout_model.tool_call_parser": (None, "hermes", "json", "llama3_json"),
    "explorer.rollout_model.enable_multimodal": (False,),
    "explorer.rollout_model.external_model_config.enable": (False,),
    "data_processor.experience_pipeline.inputs": ({},),
    "monitor.monitor_type": ("tensorboard", "wandb", "mlflow"),
    "trainer.trainer_type": ("verl", "fake"),
    "trainer.trainer_strategy": ("fsdp2", "fsdp"),
    "service.data_juicer": (None,),
}
ONE_ON_THE_CPU = (
    "explorer.rollout_model.tensor_parallel_size",
    "explorer.rollout_model.pipeline_parallel_size",
    "explorer.rollout_model.data_parallel_size",
    "trainer.ulysses_sequence_parallel_size",
)
SELECTORS_OF_ROWS = (None, "sequential", "shuffle", "random")
WITHOUT_EFFECT: dict[str, str] = {
    "cluster.total_gpu_num": "GPUs are node_num * gpu_per_node",
    "cluster.rollout_gpu_num": "GPUs follow from explorer.rollout_model",
    "cluster.trainer_gpu_num": "the trainer has the GPUs that explorers leave free",
    "synchronizer.group_name": "no process group spans services",
    "synchronizer.explorer_world_size": "explorers join and leave at will",
    "synchronizer.wait_for_checkpoint": "weights are announced when they are complete",
    "explorer.env_vars": "set them in the service's environment",
    "explorer.over_rollout.wait_after_min": "no task is given up for being slow, so none is waited for",
    "explorer.over_rollout.return_partial_tasks": "no task is given up for being slow: groups are always whole",
    "synchronizer.sync_timeout": "services wait for each other as long as it takes, and say so",
    "trainer.fix_actor_microbatch_loss_scale": "the loss is always normalised over the whole batch",
    "model.rope_scaling": "set it in the model's own configuration",
    "model.rope_theta": "set it in the model's own configuration",
    "explorer.concurrent_mode": "workflows always run concurrently, runner_per_model at once",
    "ignore_validator_suggestions": "nothing is changed silently",
    "monitor.detailed_stats": "evaluations always tell mean, spread, best and worst",
    "monitor.enable_ray_timeline": "Ray is inside the trainer alone: `ray timeline` writes it while a trainer runs",
}


def unavailable(config: RunConfig) -> list[str]:
    """What the run asks for and cannot have yet, one line each with what to set instead."""
    return [f"not available yet: {line}" for ask in ASKS for line in ask(config)]


def notices(config: RunConfig) -> list[str]:
    """What works here in another way than the configuration may suggest."""
    return [line for tell in TELLS for line in tell(config)]


def _values(config: RunConfig) -> Iterator[str]:
    tree = config.model_dump()
    for key, available in AVAILABLE.items():
        value = get(tree, key)
        if value not in available:
            yield f"{_named(key, value)} ({_instead(key, available)})"


def _named(key: str, value: object) -> str:
    return key if isinstance(value, dict | list) else f"{key}={shown(value)}"


def _instead(key: str, available: tuple[object, ...]) -> str:
    if available[0] in (None, [], {}, ""):
        return f"leave {key} out"
    return f"set {' or '.join(shown(value) for value in available)} instead"


def _rows_of_data(config: RunConfig) -> Iterator[str]:
    """Of the buffers that are read as rows: orders and media that are not there."""
    section, mixing, given = "buffer.trainer_input", config.mixing, config.buffer.trainer_input
    read = {f"{section}.experience_buffer": given.experience_buffer} if config.experience_source == "rows" else {}
    if mixing is not None:
        name = mixing.sft_dataset_name
        read[f"{section}.auxiliary_buffers.{name}"] = given.auxiliary_buffers.get(name)
    for key, buffer in read.items():
        if buffer is None:
            continue
        if buffer.data_selector.selector_type not in SELECTORS_OF_ROWS:
            named = f"{key}.data_selector.selector_type={buffer.data_selector.selector_type}"
            yield f"{named} (set sequential or shuffle instead)"
        for name in ("image_key", "video_key"):
            if getattr(buffer.format, name):
                yield f"{key}.format.{name} (leave it out)"


def _media_and_turns(config: RunConfig) -> Iterator[str]:
    for taskset in (*config.tasksets, *config.eval_tasksets):
        asked = taskset.format
        for key in ("image_key", "video_key", "enable_concatenated_multi_turn"):
            if getattr(asked, key):
                yield f"format.{key} of taskset {taskset.name} (leave {key} out)"


def _auxiliary_models(config: RunConfig) -> Iterator[str]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        key = f"explorer.auxiliary_models[{place}]"
        if model.engine_type not in AVAILABLE["explorer.rollout_model.engine_type"]:
            yield f"{key}.engine_type={model.engine_type} (set vllm instead)"
        for name in ("enable_multimodal", "enable_lora"):
            if getattr(model, name):
                yield f"{key}.{name}=true (leave it out)"
        if config.cluster.gpu_per_node == 0 and model.gpus_per_engine > 1:
            yield f"{key}.tensor_parallel_size={model.tensor_parallel_size} on the CPU (set 1 instead)"


def _parallelism_on_the_cpu(config: RunConfig) -> Iterator[str]:
    if config.cluster.gpu_per_node > 0:
        return
    tree = config.model_dump()
    for key in ONE_ON_THE_CPU:
        value = get(tree, key)
        if value > 1:
            yield f"{key}={value} on the CPU (set 1 instead, or cluster.gpu_per_node)"


def _strategy_on_the_cpu(config: RunConfig) -> Iterator[str]:
    if config.cluster.gpu_per_node == 0 and config.trainer.trainer_strategy == "fsdp":
        yield "trainer.trainer_strategy=fsdp on the CPU (set fsdp2 instead: FSDP 1 gives ranks their weights on GPUs)"


def _intervals_of_one_side(config: RunConfig) -> Iterator[str]:
    pace = config.synchronizer
    for key in ("explorer_sync_interval", "trainer_sync_interval"):
        value = getattr(pace, key)
        if value not in (None, pace.sync_interval):
            yield f"synchronizer.{key}={value} (set sync_interval for both sides instead)"


def _keys_of_verl_without_effect(config: RunConfig) -> Iterator[str]:
    for each in said(config):
        if each.fate == "idle":
            yield f"{each.place}={shown(each.value)} has no effect: {explanation(each.key, IDLE)}"
        elif each.key in OF_ALL_RANKS.values() and each.written in OF_ALL_RANKS:
            name = each.key.rpartition(".")[2]
            yield f"{each.place} is of all {config.trainer_ranks} ranks together: {name} is {each.value}"


def _sizes_that_are_not_read(config: RunConfig) -> Iterator[str]:
    for each in said(config):
        is_size = each.key.endswith(("ppo_micro_batch_size_per_gpu", "ppo_infer_micro_batch_size_per_gpu"))
        if is_size and config.trainer.use_dynamic_bsz:
            why = "trainer.use_dynamic_bsz=true makes micro-batches by their tokens"
            yield f"{each.place}={shown(each.value)} has no effect: {why}"


def _ranks_without_experiences(config: RunConfig) -> Iterator[str]:
    ranks, size = data_ranks(config), config.train_batch_size
    if config.mode in ("both", "train") and size < ranks:
        yield f"buffer.train_batch_size={size} is less than the {ranks} ranks of the trainer: some compute for nothing"


def _chunks_of_padded_sequences(config: RunConfig) -> Iterator[str]:
    attention = given(config, "actor_rollout_ref.model.override_config.attn_implementation")
    is_packed = config.trainer.use_remove_padding and (config.cluster.gpu_per_node > 0 or attention is not None)
    if config.trainer.entropy_from_logits_with_chunking and not is_packed:
        yield (
            "trainer.entropy_from_logits_with_chunking=true has no effect: veRL takes entropy in chunks where padding "
            "is removed, and on the CPU that takes an attn_implementation (trainer.use_remove_padding)"
        )


def _steps_of_the_schedule(config: RunConfig) -> Iterator[str]:
    if config.mode == "both" and schedule_steps(config) is None:
        for key in who_needs_a_total(config):
            yield f"{key} is laid out for all epochs of the rows, which are counted when the run starts"


def _stores_are_the_monitors(config: RunConfig) -> Iterator[str]:
    for each in named(config) if config.mode == "explore" else ():
        yield f"{each.key}={each.path} is written by the run's monitor: name it where the trainer is started"


def _auxiliary_buffers_are_read(config: RunConfig) -> Iterator[str]:
    read = config.mixing.sft_dataset_name if config.mixing else None
    for name in config.buffer.trainer_input.auxiliary_buffers:
        if name != read:
            key = f"buffer.trainer_input.auxiliary_buffers.{name}"
            yield f"{key} is not read: algorithm.sample_strategy=mix reads the one that sft_dataset_name names"


def _groups_are_made_up_for(config: RunConfig) -> Iterator[str]:
    if (config.algorithm.advantage_fn_args or {}).get("duplicate_experiences"):
        yield (
            "algorithm.advantage_fn_args.duplicate_experiences=true has no effect: further tasks make up for groups "
            "that std_threshold leaves out (data_processor.experience_pipeline.refill_batches)"
        )


def _tensorboard_takes_no_arguments(config: RunConfig) -> Iterator[str]:
    if config.monitor.monitor_type == "tensorboard" and config.monitor.monitor_args:
        yield "monitor.monitor_args has no effect: monitor.monitor_type=tensorboard takes none"


def _precisions_differ(config: RunConfig) -> Iterator[str]:
    if config.experience_source == "rows":
        return  # nobody samples
    sampled, trained = config.explorer.rollout_model.dtype, config.trainer.param_dtype
    if (sampled == "float32") != (trained == "fp32"):
        yield (
            f"explorer.rollout_model.dtype={sampled} and trainer.param_dtype={trained} differ: the log-probs of "
            "sampler and trainer will differ by more than rounding"
        )


def _keys_without_effect(config: RunConfig) -> Iterator[str]:
    tree, defaults = config.model_dump(), RunConfig().model_dump()
    for key, why in WITHOUT_EFFECT.items():
        if get(tree, key) != get(defaults, key):
            yield f"{key}={shown(get(tree, key))} has no effect: {why}"


Sentences = Callable[[RunConfig], Iterator[str]]

ASKS: tuple[Sentences, ...] = (
    _values,
    _rows_of_data,
    _media_and_turns,
    _auxiliary_models,
    _parallelism_on_the_cpu,
    _strategy_on_the_cpu,
    _intervals_of_one_side,
)
TELLS: tuple[Sentences, ...] = (
    nothing_is_reused,
    the_pool_fits_the_stream,
    who_asks_the_reward_model,
    _groups_are_made_up_for,
    _stores_are_the_monitors,
    _auxiliary_buffers_are_read,
    _tensorboard_takes_no_arguments,
    _precisions_differ,
    _keys_of_verl_without_effect,
    _sizes_that_are_not_read,
    _chunks_of_padded_sequences,
    _ranks_without_experiences,
    _steps_of_the_schedule,
    _keys_without_effect,
)
