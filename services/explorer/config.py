"""What may change about exploring: the engines, how many tasks they work on at once, and their patience."""

from typing import Any, Literal

from pydantic import Field

from services.config.section import Section
from services.inference.config import InferenceModelConfig


class OverRolloutConfig(Section):
    """Going on before the slowest tasks of a batch have finished."""

    ratio: float = 0.0
    wait_after_min: float = 30.0
    return_partial_tasks: bool = False


class DynamicTimeoutConfig(Section):
    """A task's timeout as a multiple of the mean time of finished ones, once tasks of `warmup_min_steps` batches are
    finished. A task that comes again has `max_timeout`."""

    enable: bool = False
    warmup_min_steps: int = 1
    ratio: float = 3.0


class ExplorerConfig(Section):
    """An explorer, and when evaluation happens.

    `runner_per_model` tasks run at once on an engine; one attempt takes at most `max_timeout` seconds. On SIGTERM
    an explorer finishes what it can within `leave_timeout` seconds and hands back the rest. It answers tasks of the
    named `tasksets` alone, or of all.
    """

    name: str = "explorer"
    tasksets: list[str] = Field(default_factory=list)
    runner_per_model: int = 8
    runner_prepare_concurrency: int = 8
    runner_prepare_max_retries: int = 2
    max_timeout: float = 1800.0
    max_retry_times: int = 2
    leave_timeout: float = 30.0
    env_vars: dict[str, Any] = Field(default_factory=dict)
    concurrent_mode: Literal["sequential", "asynchronous", "multi-threading"] = "sequential"
    max_repeat_times_per_runner: int | None = None
    runner_num: int | None = None
    rollout_model: InferenceModelConfig = InferenceModelConfig()
    auxiliary_models: list[InferenceModelConfig] = Field(default_factory=list)
    eval_interval: int = 100
    eval_on_startup: bool = True
    bench_on_latest_checkpoint: bool = False
    proxy_port: int = 8010
    listen_address: str = "0.0.0.0"
    service_status_check_interval: int = 60
    min_running_model_num: int = 1
    db_url: str | None = None
    over_rollout: OverRolloutConfig = OverRolloutConfig()
    dynamic_timeout: DynamicTimeoutConfig = DynamicTimeoutConfig()
    runner_state_report_interval: int = 0
    max_inflight_batches: int = 2
