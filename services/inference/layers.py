"""Which linear layers a model has, and what an adapter on disk says of itself: read from their files' heads alone."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"

_LENGTH = struct.Struct("<Q")


def linear_layers(model_path: str) -> frozenset[str]:
    """The names of the modules with a matrix for their weight; empty where the model's safetensors are not here."""
    directory = Path(model_path).expanduser()
    files = directory.glob("*.safetensors") if model_path and directory.is_dir() else []
    return frozenset(name for file in files for name in _matrices(file))


def _matrices(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
        tensors = json.loads(file.read(size))
    for name, facts in tensors.items():
        if name.endswith(".weight") and len(facts["shape"]) == 2:
            yield name.removesuffix(".weight")


def adapter_facts(path: str) -> dict[str, Any]:
    """The fields of the `LoraConfig` of an adapter.

    Raises:
        FileNotFoundError: one of the two files of an adapter is not there.
        ValueError: its configuration cannot be read.
    """
    directory = Path(path).expanduser()
    for name in (ADAPTER_CONFIG, ADAPTER_FILE):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory / name} is not there")
    found = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{directory / ADAPTER_CONFIG} holds no mapping")
    return found
