"""Logs: a readable line for a person at a terminal or in a file, JSON for a collector."""

import logging
import os
import sys

import structlog


def configure_logs(level: str = "info", service: str = "") -> None:
    """Set up structlog on standard error. `TRINITY_LOG_FORMAT=json` makes each line a JSON object."""
    structlog.contextvars.clear_contextvars()
    if service:
        structlog.contextvars.bind_contextvars(service=service)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            structlog.processors.format_exc_info,
            _renderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level(level)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _renderer() -> structlog.typing.Processor:
    if os.environ.get("TRINITY_LOG_FORMAT") == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)


def _level(name: str) -> int:
    return logging.getLevelNamesMapping().get(name.upper(), logging.INFO)
