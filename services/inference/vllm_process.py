"""How vLLM's processes are started by this one: with which environment, and which GPUs they may see."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from services.inference.orphans import OWNER

VISIBLE = "CUDA_VISIBLE_DEVICES"

_ENVIRONMENT = threading.Lock()
"""Engines of one process start one after the other: each reads the environment, and measures what memory is free."""


@contextmanager
def launching(devices: str | None, kv_cache_gib: int = 1, cpu_threads: int | None = None) -> Iterator[None]:
    """Engine processes that are started within see `devices` alone, in the form of `CUDA_VISIBLE_DEVICES`."""
    with _ENVIRONMENT, _visible(devices):
        _set_environment(kv_cache_gib, cpu_threads)
        yield


@contextmanager
def _visible(devices: str | None) -> Iterator[None]:
    before = os.environ.get(VISIBLE)
    if devices is not None:
        os.environ[VISIBLE] = devices
    try:
        yield
    finally:
        if devices is not None:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before


def _set_environment(kv_cache_gib: int, cpu_threads: int | None) -> None:
    """vLLM reads these when it is imported. What the user has set stays."""
    os.environ[OWNER] = str(os.getpid())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if cpu_threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(cpu_threads))
