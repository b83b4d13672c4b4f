"""What may change about logging, and about services outside the run."""

from typing import Literal

from pydantic import field_validator

from services.config.section import Section


class LogConfig(Section):
    """How much is logged, and where to; an empty `save_dir` means `log/` under the run's directory."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    group_by_node: bool = False
    save_dir: str = ""

    @field_validator("level", mode="before")
    @classmethod
    def _in_capitals(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value


class DataJuicerServiceConfig(Section):
    """Where a Data-Juicer server listens, or whether to start one."""

    server_url: str | None = None
    auto_start: bool = False
    port: int | None = None


class ServiceConfig(Section):
    """Services that are not part of Trinity."""

    data_juicer: DataJuicerServiceConfig | None = None
