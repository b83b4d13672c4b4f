"""What may change about models: which weights, how long texts may be, how they are sampled."""

from typing import Any, Literal

from pydantic import Field

from services.config.section import Section

Runner = Literal["auto", "generate", "pooling"]
"""As in vLLM: `pooling` is a classifier, which scores; `auto` is found out from the model's own configuration."""


class GenerationConfig(Section):
    """Sampling arguments of one taskset; what is unset comes from the rollout model, then from `model`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: list[str] = Field(default_factory=list)
    seed: int | None = None


class Sampling(GenerationConfig):
    """Sampling arguments with every value decided; only `seed` may stay unset."""

    temperature: float
    top_p: float
    top_k: int
    logprobs: int
    max_tokens: int
    n: int


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has room for."""


class LoRAConfig(Section):
    """The low-rank adapter that is trained in place of the model's own weights. With a `path` it begins from that."""

    name: str | None = None
    path: str | None = None
    base_model_name: str | None = None
    lora_rank: int = 32
    lora_alpha: int = 32
    lora_dtype: str = "auto"
    target_modules: str | list[str] = "all-linear"
    exclude_modules: str | list[str] | None = None
    is_dummy: bool = False


class TinkerConfig(Section):
    """Training on the Tinker service; `base_model` is `model.model_path` when unset."""

    enable: bool = False
    base_model: str | None = None
    rank: int = 32
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    base_url: str | None = None


class ExternalModelConfig(Section):
    """A model behind an OpenAI-compatible address, named by environment variables."""

    enable: bool = False
    base_url_env: str = "OPENAI_BASE_URL"
    api_key_env: str = "OPENAI_API_KEY"
    model_name: str | None = None


class ModelConfig(Section):
    """The model that is trained, and the lengths and sampling defaults of every engine. Lengths are in tokens."""

    model_path: str = ""
    trust_remote_code: bool = False
    critic_model_path: str = ""
    custom_chat_template: str | None = None
    chat_template_path: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    logprobs: int = 0
    max_model_len: int | None = None
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    min_response_tokens: int = 0
    enable_prompt_truncation: bool = True
    repetition_penalty: float = 1.0
    enable_thinking: bool | None = None
    lora_configs: list[LoRAConfig] | None = None
    fully_sharded_loras: bool = False
    max_cpu_loras: int | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    tinker: TinkerConfig = TinkerConfig()
    external_model: ExternalModelConfig = ExternalModelConfig()

    @property
    def lora(self) -> LoRAConfig | None:
        """The adapter that is trained, if any."""
        return self.lora_configs[0] if self.lora_configs else None


class InferenceModelConfig(Section):
    """The engines of one model (rollout or auxiliary); what is unset comes from `model`."""

    model_path: str | None = None
    name: str | None = None
    trust_remote_code: bool = False
    engine_type: str = "vllm"
    runner: Runner = "auto"
    engine_num: int = 1
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False
    gpu_per_engine: int = 0
    extra_engine_args: dict[str, Any] = Field(default_factory=dict)
    use_v1: bool = True
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    gpu_memory_utilization: float = 0.9
    dtype: str = "bfloat16"
    seed: int = 42
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    logprobs: int | None = None
    max_model_len: int | None = None
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    min_response_tokens: int | None = None
    enable_prompt_truncation: bool | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    enable_multimodal: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None
    enable_history: bool = False
    enable_openai_api: bool = False
    enable_log_requests: bool = False
    base_port: int | None = None
    api_key: str = "EMPTY"
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    external_model_config: ExternalModelConfig = ExternalModelConfig()
    nnodes: int = 1
    node_rank: int = 0
    enable_return_routed_experts: bool = False
    weight_sync_buffer_size: int = 1024
    bundle_indices: str = ""
    engine_id: int = 0
    ray_namespace: str | None = None
    ray_actor_name: str | None = None
    sync_method: str | None = None
    checkpoint_job_dir: str | None = None
    cuda_visible_devices: str | None = None
    enable_lora: bool = False
    enable_runtime_lora_updating: bool = False
    lora_modules: list[dict[str, Any]] | None = None
    lora_kwargs: dict[str, Any] = Field(default_factory=dict)
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None

    @property
    def gpus_per_engine(self) -> int:
        """None of ours where the model is behind an address."""
        if self.external_model_config.enable:
            return 0
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size

    @property
    def gpus(self) -> int:
        """GPUs that all engines of this model take together."""
        return self.engine_num * self.gpus_per_engine

    @property
    def is_local(self) -> bool:
        """Whether its engine is one of ours, which loads `model_path`."""
        return self.engine_type != "fake" and not self.external_model_config.enable

    @property
    def may_score(self) -> bool:
        """Whether it is a reward model, or, where its own configuration is not here to be read, may be one."""
        return self.runner == "pooling" or (self.runner == "auto" and self.is_local)

    @property
    def known_as(self) -> str:
        """The name that workflows know an auxiliary model by: its own, or the last part of its path."""
        external = self.external_model_config
        path = (external.model_name if external.enable else self.model_path) or ""
        return self.name or path.rstrip("/").rpartition("/")[2]
