"""veRL on the CPU, by veRL's own plug-in points: a platform named `cpu` and the FSDP engine registered for it.

Every process that imports veRL on the CPU loads this module through `VERL_USE_EXTERNAL_MODULES`.
"""

import contextlib
import functools
import types
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

ENVIRONMENT = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "services.trainer.backends.verl_platform"}


class _CpuDevice(types.ModuleType):
    """`torch.cpu`, with the questions about accelerator memory answered by zero."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("memory_", "max_memory_")):
            return _zero
        return getattr(torch.cpu, name)

    def empty_cache(self) -> None:
        return None

    def synchronize(self, *_: object) -> None:
        return None

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_name(self, *_: object) -> str:
        return "CPU"

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total


def _zero(*_: object, **__: object) -> int:
    return 0


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The CPU as a veRL platform, with gloo between ranks."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _CpuDevice("cpu_device")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


@functools.cache  # veRL refuses a second time, and a process may hold several workers
def register_engines() -> None:
    """Register veRL's FSDP engines for this platform. Separate, for veRL's workers import platforms first."""
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
    class CpuEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
        """veRL's engine as it is."""

    @EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
    class CpuValueEngine(FSDPEngineWithValueHead):  # type: ignore[misc]
        """veRL's engine as it is."""
