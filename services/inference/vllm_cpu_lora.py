"""vLLM's low-rank layers for the CPU, where all requests of a batch share one adapter.

vLLM's own copy the adapter's matrices for each token of a batch, which halves the throughput.
"""

from typing import Any

import torch
from torch.nn.functional import linear
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform


class OneAdapter(PunicaWrapperCPU):  # type: ignore[misc]
    """Two matrix products for the whole batch."""

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """`y += scale * x A B` in place, slice by slice of `y`, for those rows whose request has the adapter.

        Shapes: `y` (T, sum of `output_slices`), `x` (T, inputs), each A (1, 1, rank, inputs), B (1, 1, slice, rank).
        """
        if self.no_lora:
            return
        if lora_a_stacked[0].shape[0] != 1:
            raise RuntimeError("the CPU engine serves one adapter: leave max_loras out of extra_engine_args")
        rows, inputs = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        adapted = (self.token_lora_indices >= 0).to(x.dtype)[:, None] * scale
        start = 0
        for size, down, up in zip(output_slices, lora_a_stacked, lora_b_stacked, strict=True):
            low = linear(inputs, down[0, 0].to(x.dtype)) * adapted
            rows[:, start : start + size] += linear(low, up[0, 0].to(x.dtype))
            start += size


def use_one_adapter() -> None:
    """vLLM asks its platform which layers to take."""
    CpuPlatform.get_punica_wrapper = classmethod(lambda _: f"{__name__}.{OneAdapter.__qualname__}")
