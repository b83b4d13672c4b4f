"""Weights on disk: an announced version is used only when every file has the announced size and digest."""

import hashlib
from pathlib import Path

from schemas.weights import FileDigest, WeightsAnnounced
from services.inference.layers import ADAPTER_CONFIG

_BLOCK_BYTES = 1 << 22


class WeightsUnusable(Exception):
    """Announced weights are missing, incomplete or not what was announced."""


def digest(path: Path) -> FileDigest:
    """Size and SHA-256 of one file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return FileDigest(name=path.name, size_bytes=path.stat().st_size, sha256=hasher.hexdigest())


def holds_adapter(directory: Path) -> bool:
    """Whether the weights are a low-rank adapter in PEFT's layout, rather than those of a whole model."""
    return (directory / ADAPTER_CONFIG).is_file()


def verified(announced: WeightsAnnounced) -> Path:
    """The directory of the announced weights.

    Raises:
        WeightsUnusable: a file is absent, or differs in size or digest.
    """
    directory = Path(announced.uri)
    for expected in announced.files:
        path = directory / expected.name
        if not path.is_file():
            raise WeightsUnusable(f"{path} of version {announced.weights.version} is not there")
        if path.stat().st_size != expected.size_bytes:
            raise WeightsUnusable(f"{path} has {path.stat().st_size} bytes, announced were {expected.size_bytes}")
        if digest(path).sha256 != expected.sha256:
            raise WeightsUnusable(f"{path} does not have the announced digest {expected.sha256[:12]}")
    return directory
