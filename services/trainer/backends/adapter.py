"""An adapter under training: taken out for the reference policy, and written in PEFT's layout."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from services.inference.layers import ADAPTER_CONFIG, ADAPTER_FILE


def write_adapter(directory: Path, parameters: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
    """Write the adapter's parameters, by PEFT's names, and `settings`, the fields of its `LoraConfig`."""
    from safetensors.torch import save_file

    save_file(dict(parameters), directory / ADAPTER_FILE, metadata={"format": "pt"})
    text = json.dumps(dict(settings) | {"inference_mode": True}, default=_plain, indent=2, sort_keys=True)
    (directory / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


@contextmanager
def adapter_off(model: torch.nn.Module) -> Iterator[None]:
    """While within, the model computes what its base does.

    PEFT's own `disable_adapter` also marks the adapter as frozen meanwhile. FSDP2 looks at that once, in the first
    forward pass, and would never compute a gradient where that pass is the reference's.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    _switch(layers, is_off=True)
    try:
        yield
    finally:
        _switch(layers, is_off=False)


def _switch(layers: Sequence[Any], is_off: bool) -> None:
    for layer in layers:
        layer._disable_adapters = is_off


def _plain(value: object) -> object:
    """Sets in an order, so that equal adapters are equal files."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} of the adapter's configuration cannot be written as JSON")
