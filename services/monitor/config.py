"""What may change about the monitor: which writer shows the metrics."""

from typing import Any, Literal

from services.config.section import Section


class MonitorConfig(Section):
    """The metrics writer and its arguments."""

    monitor_type: Literal["tensorboard", "wandb", "mlflow", "swanlab"] = "tensorboard"
    monitor_args: dict[str, Any] | None = None
    detailed_stats: bool = False
    enable_ray_timeline: bool = False
    cache_dir: str = ""
