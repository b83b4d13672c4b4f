"""What Trinity-RFT's configuration can ask for and this version cannot do yet, and what it does another way."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from services.config.explain import shown
from services.config.keys import get, joined, leaves
from services.config.tree import RunConfig
from services.rollout.config import ExperienceBufferConfig

AVAILABLE: dict[str, tuple[object, ...]] = {
    "mode": ("both", "explore", "train", "bench"),
    "algorithm.algorithm_type": ("grpo",),
    "algorithm.advantage_fn": ("grpo",),
    "algorithm.policy_loss_fn": ("ppo",),
    "algorithm.kl_loss_fn": ("none", "k1", "k2", "k3", "low_var_kl", "abs"),
    "algorithm.kl_penalty_fn": ("none",),
    "algorithm.entropy_loss_fn": ("default", "none"),
    "algorithm.sample_strategy": ("default", "warmup"),
    "algorithm.loss_agg_mode": (
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ),
    "algorithm.enable_router_replay": (False,),
    "algorithm.bypass_old_logprobs": (True,),
    "algorithm.rollout_correction": (None, {}),
    "algorithm.optimizer.optimizer_type": ("adam", "adamw"),
    "algorithm.optimizer.lr_scheduler_type": ("constant", "cosine"),
    "synchronizer.sync_method": ("checkpoint",),
    "model.lora_configs": (None, []),
    "model.tinker.enable": (False,),
    "model.external_model.enable": (False,),
    "explorer.auxiliary_models": ([],),
    "explorer.over_rollout.ratio": (0.0,),
    "explorer.dynamic_timeout.enable": (False,),
    "explorer.rollout_model.engine_type": ("vllm", "vllm_async", "fake"),
    "explorer.rollout_model.enable_openai_api": (False,),
    "explorer.rollout_model.enable_multimodal": (False,),
    "explorer.rollout_model.enable_lora": (False,),
    "explorer.rollout_model.external_model_config.enable": (False,),
    "buffer.explorer_output": (None,),
    "buffer.trainer_input.auxiliary_buffers": ({},),
    "data_processor.task_pipeline": (None,),
    "data_processor.experience_pipeline.operators": ([],),
    "data_processor.experience_pipeline.inputs": ({},),
    "data_processor.experience_pipeline.output": (None,),
    "monitor.monitor_type": ("tensorboard",),
    "trainer.trainer_type": ("verl", "fake"),
    "trainer.trainer_strategy": ("fsdp2", "fsdp"),
    "trainer.critic_warmup": (0,),
    "trainer.trainer_config_path": ("",),
    "service.data_juicer": (None,),
    "stages": ([],),
}
ONE_ON_THE_CPU = (
    "explorer.rollout_model.tensor_parallel_size",
    "explorer.rollout_model.pipeline_parallel_size",
    "explorer.rollout_model.data_parallel_size",
    "trainer.ulysses_sequence_parallel_size",
)
TRAINER_CONFIG_KEYS = (
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.ref.fsdp_config.*",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
)
SELECTORS = (None, "sequential", "shuffle", "random")
WITHOUT_EFFECT: dict[str, str] = {
    "cluster.total_gpu_num": "GPUs are node_num * gpu_per_node",
    "cluster.rollout_gpu_num": "GPUs follow from explorer.rollout_model",
    "cluster.trainer_gpu_num": "the trainer has the GPUs that explorers leave free",
    "synchronizer.group_name": "no process group spans services",
    "synchronizer.explorer_world_size": "explorers join and leave at will",
    "synchronizer.wait_for_checkpoint": "weights are announced when they are complete",
    "algorithm.optimizer.warmup_style": "use lr_scheduler_type",
    "explorer.env_vars": "set them in the service's environment",
    "synchronizer.sync_timeout": "services wait for each other as long as it takes, and say so",
    "trainer.save_hf_checkpoint": "announced weights are in Hugging Face layout, under weights/version_N",
    "model.rope_scaling": "set it in the model's own configuration",
    "model.rope_theta": "set it in the model's own configuration",
    "explorer.concurrent_mode": "workflows always run concurrently, runner_per_model at once",
    "ignore_validator_suggestions": "nothing is changed silently",
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


def _selectors(config: RunConfig) -> Iterator[str]:
    for taskset in (*config.tasksets, *config.eval_tasksets):
        selector = taskset.data_selector.selector_type
        if selector not in SELECTORS:
            named = f"data_selector.selector_type={selector} of taskset {taskset.name}"
            yield f"{named} (set sequential or shuffle instead)"


def _media_and_turns(config: RunConfig) -> Iterator[str]:
    for taskset in (*config.tasksets, *config.eval_tasksets):
        asked = taskset.format
        for key in ("image_key", "video_key", "enable_concatenated_multi_turn"):
            if getattr(asked, key):
                yield f"format.{key} of taskset {taskset.name} (leave {key} out)"
        if taskset.storage_type == "sql":
            yield f"storage_type=sql of taskset {taskset.name} (set file or reasoning_gym instead)"


def _experience_buffer(config: RunConfig) -> Iterator[str]:
    key = "buffer.trainer_input.experience_buffer"
    buffer = config.buffer.trainer_input.experience_buffer or ExperienceBufferConfig()
    if buffer.storage_type != "queue":
        yield f"{key}.storage_type={buffer.storage_type} (set queue instead: the stream on the bus)"
    if buffer.replay_buffer and buffer.replay_buffer.enable:
        yield f"{key}.replay_buffer.enable=true (set false instead)"


def _parallelism_on_the_cpu(config: RunConfig) -> Iterator[str]:
    if config.cluster.gpu_per_node > 0:
        return
    tree = config.model_dump()
    for key in ONE_ON_THE_CPU:
        value = get(tree, key)
        if value > 1:
            yield f"{key}={value} on the CPU (set 1 instead, or cluster.gpu_per_node)"


def _intervals_of_one_side(config: RunConfig) -> Iterator[str]:
    pace = config.synchronizer
    for key in ("explorer_sync_interval", "trainer_sync_interval"):
        value = getattr(pace, key)
        if value not in (None, pace.sync_interval):
            yield f"synchronizer.{key}={value} (set sync_interval for both sides instead)"


def _trainer_config(config: RunConfig) -> Iterator[str]:
    if config.trainer.trainer_type == "fake":
        return  # the fake backend's own arguments
    given = dict(config.trainer.trainer_config)
    if given.pop("critic", None):
        yield "trainer.trainer_config.critic (leave it out)"
    for path, value in leaves(given):
        key = joined(path)
        accepted = any(fnmatchcase(key, pattern) for pattern in TRAINER_CONFIG_KEYS)
        if not key or accepted or (key == "trainer.critic_warmup" and value == 0):
            continue
        yield f"trainer.trainer_config.{key}={shown(value)} (leave it out)"


def _path_is_not_written(config: RunConfig) -> Iterator[str]:
    buffer = config.buffer.trainer_input.experience_buffer
    if buffer and buffer.path and buffer.storage_type == "queue":
        yield (
            f"buffer.trainer_input.experience_buffer.path={buffer.path} is not written: the experience stream is the "
            "durable store; export it with `trinity export`"
        )


def _precisions_differ(config: RunConfig) -> Iterator[str]:
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
    _selectors,
    _media_and_turns,
    _experience_buffer,
    _parallelism_on_the_cpu,
    _intervals_of_one_side,
    _trainer_config,
)
TELLS: tuple[Sentences, ...] = (_path_is_not_written, _precisions_differ, _keys_without_effect)
