"""What may change about data: tasksets, the formats of their rows, and the experience buffer."""

from typing import Any, Literal

from pydantic import Field

from services.config.section import Section
from services.inference.config import GenerationConfig

DEFAULT_WORKFLOW = "math_workflow"
REWARD_MODEL_WORKFLOW = "reward_model_workflow"


class FormatConfig(Section):
    """Which fields of a row hold what."""

    prompt_type: Literal["messages", "plaintext", "chatpair"] = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = None
    video_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None


class DataSelectorConfig(Section):
    """In which order rows are taken."""

    selector_type: str | None = "sequential"
    seed: int = 42
    feature_keys: list[str] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class ReplayBufferConfig(Section):
    """Training on an experience more than once, where a step has room for more than is fresh.

    Of the groups that were trained on `reuse_cooldown_time` seconds of stream time ago or before (None: no reuse),
    those of the highest priority are trained on again: `linear_decay`, `version - decay * uses`, or
    `decay_limit_randomization`, the same with normal noise of deviation `sigma`, up to `use_count_limit` uses.
    """

    enable: bool = False
    priority_fn: str = "linear_decay"
    reuse_cooldown_time: float | None = None
    priority_fn_args: dict[str, Any] = Field(default_factory=lambda: {"decay": 2.0})


class _Rows(Section):
    """What every store of rows has: its name, its place, and how to read it."""

    name: str = ""
    path: str | None = None
    split: str = "train"
    subset_name: str | None = None
    format: FormatConfig = FormatConfig()
    data_selector: DataSelectorConfig = DataSelectorConfig()
    index: int = 0
    batch_size: int = 0
    total_epochs: int = 1
    total_steps: int | None = None
    max_retry_times: int = 3
    max_retry_interval: float = 1.0
    enable_progress_bar: bool | None = False
    ray_namespace: str | None = None


class OperatorConfig(Section):
    """One step of a data pipeline."""

    name: str = ""
    args: dict[str, Any] = Field(default_factory=dict)


class RowPipelineConfig(Section):
    """What happens to the rows of a taskset before they are tasks: `operators` in their order, then the order by
    `priority_weights` (a column and its weight), of which the first `top_k` stay (-1: all).

    `target_fields` are the columns that operators look at where they name none. `inputs` are files to take the rows
    from in place of the taskset's own.
    """

    operators: list[OperatorConfig] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
    target_fields: list[str] = Field(default_factory=list)
    priority_weights: dict[str, float] = Field(default_factory=dict)
    top_k: int = -1


class TasksetConfig(_Rows):
    """One set of tasks. With `storage_type: reasoning_gym`, `path` names the generator.

    `repeat_times` counts the answers to a task: of an evaluation, 1 when unset; in training the algorithm decides.
    `weight` is its share of the tasks beside those of other tasksets; without any, sizes decide.
    """

    storage_type: Literal["file", "sql", "reasoning_gym"] = "file"
    generator_args: dict[str, Any] = Field(default_factory=dict)
    default_workflow_type: str | None = None
    default_reward_fn_type: str | None = None
    rollout_args: GenerationConfig = GenerationConfig()
    workflow_args: dict[str, Any] = Field(default_factory=dict)
    reward_fn_args: dict[str, Any] = Field(default_factory=dict)
    task_selector: DataSelectorConfig | None = None
    repeat_times: int | None = None
    weight: float | None = None
    task_pipeline: RowPipelineConfig | None = None
    is_eval: bool = False


class ExperienceBufferConfig(_Rows):
    """The stream between explorers and trainer (`queue`), or a store of ready-made experiences.

    `capacity` bounds, in experiences, what the replay buffer holds for reuse.
    """

    storage_type: Literal["queue", "sql", "file"] = "queue"
    capacity: int = 10000
    max_read_timeout: float = 1800.0
    replay_buffer: ReplayBufferConfig | None = ReplayBufferConfig()
    schema_type: str | None = None
    tokenizer_path: str | None = None


class StorageConfig(ExperienceBufferConfig):
    """A store for either tasks or experiences, as `explorer_output` takes it."""

    storage_type: Literal["queue", "sql", "file"] = "file"
    repeat_times: int | None = None
    default_workflow_type: str | None = None
    default_reward_fn_type: str | None = None
    rollout_args: GenerationConfig = GenerationConfig()
    workflow_args: dict[str, Any] = Field(default_factory=dict)
    reward_fn_args: dict[str, Any] = Field(default_factory=dict)
    wrap_in_ray: bool = True
    is_eval: bool = False


class ExplorerInput(Section):
    """The tasks to explore and to evaluate on, and what tasksets share; `taskset` and `tasksets` exclude each other."""

    taskset: TasksetConfig | None = None
    tasksets: list[TasksetConfig] = Field(default_factory=list)
    eval_tasksets: list[TasksetConfig] = Field(default_factory=list)
    default_workflow_type: str | None = None
    default_eval_workflow_type: str | None = None
    default_reward_fn_type: str | None = None


class TrainerInput(Section):
    """Where the trainer reads from."""

    experience_buffer: ExperienceBufferConfig | None = None
    auxiliary_buffers: dict[str, ExperienceBufferConfig] = Field(default_factory=dict)


class BufferConfig(Section):
    """Sizes and lengths: `batch_size` counts tasks, `train_batch_size` experiences (0: batch_size * repeat_times).

    `retain` says how much of the experience stream is kept for replay once a checkpoint holds it: `all`, a size
    (`512MiB`, or `50%` of bus.max_experience_bytes), an age (`12h`, `7d`), or `checkpoint`: what the oldest kept
    checkpoint does not hold.
    """

    batch_size: int | None = None
    train_batch_size: int = 0
    total_epochs: int = 1
    total_steps: int | None = None
    retain: str = "50%"
    explorer_input: ExplorerInput = ExplorerInput()
    trainer_input: TrainerInput = TrainerInput()
    explorer_output: StorageConfig | None = None
    tokenizer_path: str | None = None
    cache_dir: str | None = None


class ExperiencePipelineConfig(Section):
    """What happens to experiences between explorer and trainer.

    What the operators filter is made up for by further tasks, up to `refill_batches` times `train_batch_size`
    experiences a step; what is filtered beyond that counts to the step as if it were there. 0 makes up for nothing.
    """

    operators: list[OperatorConfig] = Field(default_factory=list)
    refill_batches: int = 10
    save_input: bool = True
    input_save_path: str | None = None
    inputs: dict[str, ExperienceBufferConfig] = Field(default_factory=dict)
    output: ExperienceBufferConfig | None = None


class TaskPipelineConfig(RowPipelineConfig):
    """The pipeline of the training tasksets: of those whose name or path is among `inputs`, or of all where that is
    empty. A taskset whose path is that of `output` has the rows of `inputs`. What comes out is written to
    `output.path`, where one is given.
    """

    num_process: int = 4
    config_path: str | None = None
    output: TasksetConfig | None = None

    def of(self, taskset: TasksetConfig) -> RowPipelineConfig | None:
        """What the pipeline means for one taskset."""
        own: dict[str, Any] = {name: getattr(self, name) for name in RowPipelineConfig.model_fields}
        is_output = self.output is not None and taskset.path is not None and taskset.path == self.output.path
        if self.inputs and is_output:
            return RowPipelineConfig(**own)
        if self.inputs and not {taskset.name, taskset.path} & {*self.inputs}:
            return None
        return RowPipelineConfig(**{**own, "inputs": []})


class DataProcessorConfig(Section):
    """The two data pipelines."""

    task_pipeline: TaskPipelineConfig | None = None
    experience_pipeline: ExperiencePipelineConfig = ExperiencePipelineConfig()
