"""A low-rank adapter in vLLM: each version takes the place of the one before, for requests in flight too.

Invariant: every request names the same adapter, whose weights change in place while the engine is paused. So a batch
never mixes two versions, and none samples without the adapter.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.inference.config import LORA_RANKS
from services.inference.weights import WeightsUnusable, holds_adapter

DEFAULT_NAME = "adapter"
_NUMBER = 1


@dataclass(frozen=True)
class LoraSettings:
    """What an engine must know of its adapters beforehand. One whose weights stay begins with that at `path`."""

    rank: int
    name: str = DEFAULT_NAME
    dtype: str = "auto"
    is_fully_sharded: bool = False
    path: str | None = None


def lora_arguments(lora: LoraSettings | None) -> dict[str, Any]:
    """For vLLM's `AsyncEngineArgs`."""
    if lora is None:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 1,
        "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= lora.rank),
        "lora_dtype": lora.dtype,
        "fully_sharded_loras": lora.is_fully_sharded,
    }


def adapter_request(lora: LoraSettings, directory: str, replaces: bool = False) -> Any:
    """vLLM's `LoRARequest` for the adapter in `directory`, which `replaces` what its predecessor has left."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora.name, _NUMBER, directory, load_inplace=replaces)


def assert_kind(directory: str, base: str, lora: LoraSettings | None) -> None:
    """That the weights in `directory` are of the kind that an engine of the model at `base` was started for.

    Raises:
        WeightsUnusable: an adapter for an engine without one, or whole weights, other than the base, for one with.
    """
    is_adapter = holds_adapter(Path(directory))
    if is_adapter and lora is None:
        raise WeightsUnusable(f"{directory} holds an adapter: set model.lora_configs as the trainer has it")
    if lora is not None and not is_adapter and directory != base:
        raise WeightsUnusable(f"{directory} holds no adapter, which model.lora_configs asks for: leave it out")
