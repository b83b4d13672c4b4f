"""The whole configuration of a run; its properties answer what several keys decide together."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from services.config.algorithms.types import ALGORITHM_TYPES, AlgorithmType
from services.config.bus import BusConfig
from services.config.cluster import ClusterConfig
from services.config.log import LogConfig, ServiceConfig
from services.config.rows import ROW_SCHEMAS, ExperienceSource, Mixing, RowSchema
from services.config.section import Section
from services.explorer.config import ExplorerConfig
from services.inference.config import InferenceModelConfig, ModelConfig, Sampling
from services.monitor.config import MonitorConfig
from services.rollout.config import (
    DEFAULT_WORKFLOW,
    REWARD_MODEL_WORKFLOW,
    BufferConfig,
    DataProcessorConfig,
    RowPipelineConfig,
    TasksetConfig,
)
from services.synchronizer.config import SynchronizerConfig
from services.trainer.config import AlgorithmConfig, ReplayConfig, TrainerConfig

Mode = Literal["both", "explore", "train", "bench", "serve", "colocate"]

DEFAULT_CHECKPOINT_ROOT_DIR = "./checkpoints"
DEFAULT_LENGTH_TOKENS = 2048
INHERITED_FROM_MODEL = {
    "model_path": "model_path",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "logprobs": "logprobs",
    "max_model_len": "max_model_len",
    "max_prompt_tokens": "max_prompt_tokens",
    "max_response_tokens": "max_response_tokens",
    "min_response_tokens": "min_response_tokens",
    "enable_prompt_truncation": "enable_prompt_truncation",
    "repetition_penalty": "repetition_penalty",
    "enable_thinking": "enable_thinking",
    "chat_template": "custom_chat_template",
    "rope_scaling": "rope_scaling",
    "rope_theta": "rope_theta",
}
INHERITED_BY_AUXILIARY_MODELS = ("temperature", "top_p", "top_k", "repetition_penalty", "enable_thinking")


class StageConfig(Section):
    """One stage of several, as changes to the sections of the run."""

    stage_name: str
    mode: Mode | None = None
    algorithm: AlgorithmConfig | None = None
    buffer: BufferConfig | None = None
    data_processor: DataProcessorConfig | None = None
    explorer: ExplorerConfig | None = None
    trainer: TrainerConfig | None = None


class RunConfig(Section):
    """One experiment, `<project>/<name>`."""

    mode: Mode = "both"
    project: str = "Trinity-RFT"
    group: str = ""
    name: str = "rft"
    checkpoint_root_dir: str = ""
    checkpoint_job_dir: str = ""
    continue_from_checkpoint: bool = True
    plugin_dirs: list[str] = Field(default_factory=list)
    ray_namespace: str = ""
    ignore_validator_suggestions: bool = False
    algorithm: AlgorithmConfig = AlgorithmConfig()
    data_processor: DataProcessorConfig = DataProcessorConfig()
    model: ModelConfig = ModelConfig()
    cluster: ClusterConfig = ClusterConfig()
    buffer: BufferConfig = BufferConfig()
    explorer: ExplorerConfig = ExplorerConfig()
    trainer: TrainerConfig = TrainerConfig()
    monitor: MonitorConfig = MonitorConfig()
    synchronizer: SynchronizerConfig = SynchronizerConfig()
    bus: BusConfig = BusConfig()
    replay: ReplayConfig | None = None
    service: ServiceConfig = ServiceConfig()
    log: LogConfig = LogConfig()
    stages: list[StageConfig] = Field(default_factory=list)

    @property
    def run_name(self) -> str:
        return f"{self.project}/{self.name}"

    @property
    def run_dir(self) -> Path:
        """The absolute directory of everything that the run keeps."""
        if self.checkpoint_job_dir:
            return Path(self.checkpoint_job_dir).expanduser().absolute()
        root = Path(self.checkpoint_root_dir or DEFAULT_CHECKPOINT_ROOT_DIR)
        return root.expanduser().absolute() / self.project / self.name

    @property
    def algorithm_type(self) -> AlgorithmType:
        """The table's entry of the algorithm; an unknown name has GRPO's until the checks refuse it."""
        return ALGORITHM_TYPES.get(self.algorithm.algorithm_type, AlgorithmType())

    @property
    def repeat_times(self) -> int:
        """Answers to each task of training."""
        repeat_times = self.algorithm.repeat_times
        return self.algorithm_type.repeat_times if repeat_times is None else repeat_times

    @property
    def batch_size(self) -> int:
        """Tasks in a released batch."""
        if self.buffer.batch_size is not None:
            return self.buffer.batch_size
        given = self.buffer.train_batch_size
        usual = given - self.mixing.experts(given) if self.mixing else given
        return max(1, usual // max(1, self.repeat_times))

    @property
    def train_batch_size(self) -> int:
        """Experiences in an optimizer step, expert rows included."""
        if self.buffer.train_batch_size:
            return self.buffer.train_batch_size
        made = self.batch_size * self.repeat_times
        return self.mixing.whole(made) if self.mixing else made

    @property
    def expert_batch_size(self) -> int:
        """Rows of expert data in an optimizer step: those that `sample_strategy: mix` adds."""
        return self.mixing.experts(self.train_batch_size) if self.mixing else 0

    @property
    def usual_batch_size(self) -> int:
        """Experiences in an optimizer step that come from the trainer's source: all but the expert rows."""
        return self.train_batch_size - self.expert_batch_size

    @property
    def fresh_batch_size(self) -> int:
        """Of those, the experiences that no step before has had: where experiences are used again, what a released
        batch owes, else all."""
        made = self.batch_size * self.repeat_times
        return min(made, self.usual_batch_size) if self.may_reuse else self.usual_batch_size

    @property
    def may_reuse(self) -> bool:
        """Whether the configuration asks for training on experiences more than once."""
        buffer = self.buffer.trainer_input.experience_buffer
        asked = buffer.replay_buffer if buffer else None
        is_asked = asked is not None and asked.enable and asked.reuse_cooldown_time is not None
        return is_asked and self.experience_source != "rows"

    @property
    def mixing(self) -> Mixing | None:
        """How expert data is mixed in; None where none is."""
        strategy = self.algorithm.sample_strategy or self.algorithm_type.sample_strategy
        return Mixing.of(self.algorithm.sample_strategy_args or {}) if strategy == "mix" else None

    @property
    def experience_source(self) -> ExperienceSource:
        """Where the trainer takes its experiences from."""
        buffer = self.buffer.trainer_input.experience_buffer
        if self.replay is not None:
            return "replay"
        if self.mode != "train" or buffer is None or buffer.storage_type == "queue":
            return "stream"
        return "rows" if buffer.storage_type == "file" and self.row_schema is not None else "store"

    @property
    def is_whole(self) -> bool:
        """Whether a launcher of this configuration starts all of the run, and a bus where none is configured."""
        return self.mode in ("both", "bench") or self.experience_source != "stream"

    @property
    def row_schema(self) -> RowSchema | None:
        """How the algorithm reads rows of data; None where it learns from sampled experiences alone."""
        return ROW_SCHEMAS.get(self.algorithm.algorithm_type)

    @property
    def total_steps(self) -> int | None:
        """Steps after which the run ends; None when the epochs alone decide."""
        if self.buffer.total_steps is not None:
            return self.buffer.total_steps
        return self.trainer.total_steps

    @property
    def eval_interval(self) -> int:
        """Versions between evaluations: `explorer.eval_interval`, rounded up to versions that are announced."""
        sync_interval = max(1, self.synchronizer.sync_interval)
        return -(-self.explorer.eval_interval // sync_interval) * sync_interval

    @property
    def max_response_tokens(self) -> int:
        return _response_tokens(self.model)

    @property
    def max_prompt_tokens(self) -> int:
        return _prompt_tokens(self.model)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and response together that an engine and the trainer have room for."""
        return self.model.max_model_len or self.max_prompt_tokens + self.max_response_tokens

    @property
    def rollout_model(self) -> InferenceModelConfig:
        """The rollout engines, with what they leave unset taken from `model`."""
        return self.explorer.rollout_model.model_copy(update=self.inherited_by_rollout_model)

    @property
    def auxiliary_models(self) -> list[InferenceModelConfig]:
        """The auxiliary models, named, with what they leave unset taken from `model`.

        Without a `max_model_len` of its own, a model has room for a prompt, a response, and the token that an engine
        samples in order to give their log-probs; a classifier, whose tokens are other ones, for what it was made for.
        """
        shared: dict[str, object] = {
            key: getattr(self.model, INHERITED_FROM_MODEL[key]) for key in INHERITED_BY_AUXILIARY_MODELS
        }
        shared |= {"max_model_len": self.max_model_len + 1, "max_response_tokens": self.max_response_tokens}
        return [
            model.model_copy(
                update={"name": model.known_as}
                | {key: value for key, value in shared.items() if getattr(model, key) is None}
                | ({"max_model_len": model.max_model_len} if model.runner == "pooling" else {})
            )
            for model in self.explorer.auxiliary_models
        ]

    @property
    def inherited_by_rollout_model(self) -> dict[str, object]:
        """The keys that `explorer.rollout_model` leaves unset, with their values from `model`."""
        lengths = {
            "max_model_len": self.max_model_len,
            "max_prompt_tokens": self.max_prompt_tokens,
            "max_response_tokens": self.max_response_tokens,
        }
        return {
            key: lengths.get(key, getattr(self.model, source))
            for key, source in INHERITED_FROM_MODEL.items()
            if getattr(self.explorer.rollout_model, key) is None
        }

    @property
    def tasksets(self) -> list[TasksetConfig]:
        """The tasksets to explore, complete: named, with workflow, repeat times, sizes and lengths."""
        explorer_input = self.buffer.explorer_input
        single = [] if explorer_input.taskset is None else [explorer_input.taskset]
        return [
            self._complete(taskset, taskset.name or _numbered("taskset", index), is_eval=False)
            for index, taskset in enumerate(single or explorer_input.tasksets)
        ]

    @property
    def eval_tasksets(self) -> list[TasksetConfig]:
        """The tasksets to evaluate on, complete as `tasksets` are."""
        return [
            self._complete(taskset, taskset.name or _numbered("eval_taskset", index), is_eval=True)
            for index, taskset in enumerate(self.buffer.explorer_input.eval_tasksets)
        ]

    def generation(self, taskset: TasksetConfig) -> Sampling:
        """The sampling arguments of a taskset: its own, else the rollout model's, else those of `model`."""
        rollout = self.rollout_model
        args = taskset.rollout_args
        repeat_times = taskset.repeat_times or args.n or 1
        inherited: dict[str, object] = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "logprobs": rollout.logprobs,
            "max_tokens": rollout.max_response_tokens,
        }
        own = args.model_dump(exclude_none=True)
        return Sampling.model_validate(inherited | own | {"n": repeat_times if taskset.is_eval else self.repeat_times})

    def rollout_args(self, taskset: TasksetConfig) -> dict[str, object]:
        """The sampling arguments that the tasks of `taskset` carry."""
        rollout = self.rollout_model
        return {
            **self.generation(taskset).model_dump(mode="json", exclude={"n", "logprobs"}),
            "min_tokens": rollout.min_response_tokens or 0,
            "repetition_penalty": rollout.repetition_penalty or 1.0,
            "ignore_eos": rollout.ignore_eos,
        }

    @property
    def explorer_gpus(self) -> int:
        """GPUs that the rollout and the auxiliary engines take."""
        models = [self.explorer.rollout_model, *self.explorer.auxiliary_models]
        return sum(model.gpus for model in models)

    @property
    def trainer_ranks(self) -> int:
        """Processes that train together: one a GPU that explorers leave free, or CPU ranks where there is no GPU."""
        if self.cluster.gpu_per_node == 0:
            return self.cluster.trainer_ranks or 1
        return self.cluster.gpus if self.mode == "train" else self.cluster.gpus - self.explorer_gpus

    def _pipeline_of(self, taskset: TasksetConfig) -> RowPipelineConfig | None:
        pipeline = self.data_processor.task_pipeline
        return pipeline.of(taskset) if pipeline else None

    def _workflow_without_name(self, taskset: TasksetConfig) -> str:
        """A reward model gives the reward where the run has one, and neither a workflow nor a reward is named."""
        reward = taskset.default_reward_fn_type or self.buffer.explorer_input.default_reward_fn_type
        is_scored = reward is None and any(model.may_score for model in self.explorer.auxiliary_models)
        return REWARD_MODEL_WORKFLOW if is_scored else DEFAULT_WORKFLOW

    def _complete(self, taskset: TasksetConfig, name: str, *, is_eval: bool) -> TasksetConfig:
        shared = self.buffer.explorer_input
        workflow = taskset.default_workflow_type or shared.default_workflow_type
        if is_eval:
            workflow = taskset.default_workflow_type or shared.default_eval_workflow_type or workflow
        repeat_times = (taskset.repeat_times or taskset.rollout_args.n or 1) if is_eval else self.repeat_times
        return taskset.model_copy(
            update={
                "name": name,
                "is_eval": is_eval,
                "repeat_times": repeat_times,
                "default_workflow_type": workflow or self._workflow_without_name(taskset),
                "default_reward_fn_type": taskset.default_reward_fn_type or shared.default_reward_fn_type,
                "data_selector": taskset.task_selector or taskset.data_selector,
                "task_pipeline": taskset.task_pipeline or (None if is_eval else self._pipeline_of(taskset)),
                "batch_size": taskset.batch_size or self.batch_size,
                "total_epochs": 1 if is_eval else self.buffer.total_epochs,
                "total_steps": None if is_eval else self.total_steps,
            }
        )


def _numbered(stem: str, index: int) -> str:
    return stem if index == 0 else f"{stem}_{index}"


def _response_tokens(model: ModelConfig) -> int:
    if model.max_response_tokens is not None:
        return model.max_response_tokens
    if model.max_model_len is None:
        return DEFAULT_LENGTH_TOKENS
    if model.max_prompt_tokens is not None:
        return model.max_model_len - model.max_prompt_tokens
    return model.max_model_len // 2


def _prompt_tokens(model: ModelConfig) -> int:
    if model.max_prompt_tokens is not None:
        return model.max_prompt_tokens
    if model.max_model_len is None:
        return DEFAULT_LENGTH_TOKENS
    return model.max_model_len - _response_tokens(model)
