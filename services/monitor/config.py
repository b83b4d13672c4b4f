"""What may change about the monitor: which record shows the metrics, and what that record takes."""

from typing import Any, Literal

from pydantic import Field

from services.config.section import Section

MonitorType = Literal["tensorboard", "wandb", "mlflow", "swanlab"]
SECRETS = ("api_key", "password")
"""The arguments that are shown to nobody."""


class MonitorConfig(Section):
    """The record of the metrics and its arguments."""

    monitor_type: MonitorType = "tensorboard"
    monitor_args: dict[str, Any] | None = None
    detailed_stats: bool = False
    enable_ray_timeline: bool = False
    cache_dir: str = ""


class WandbArguments(Section):
    """`monitor_args` of `monitor_type: wandb`; what is unset is left to wandb and its environment variables."""

    base_url: str | None = None
    api_key: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    tags: list[str] = Field(default_factory=list)
    notes: str | None = None


class MlflowArguments(Section):
    """`monitor_args` of `monitor_type: mlflow`. Without `uri`, MLFLOW_TRACKING_URI is read, else a file is written."""

    uri: str | None = None
    username: str | None = None
    password: str | None = None


ARGUMENTS: dict[str, type[Section]] = {"wandb": WandbArguments, "mlflow": MlflowArguments}
