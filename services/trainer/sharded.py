"""veRL's sharded files: a tensor whose pieces the ranks have written, read as one by any number of ranks, or by none.

Files are mapped into memory, so that only what is copied is read. Nothing is made of them but tensors, plain values and
the few types of torch and numpy that hold these: a file that asks for more is refused.
"""

import _codecs
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

Kind = Literal["model", "optim", "extra_state"]

FACTS_FILE = "fsdp_config.json"
_NAME = re.compile(r"^model_world_size_(\d+)_rank_(\d+)\.pt$")
_OF_RANDOM_STATES = [
    np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    np.ndarray,
    np.dtype,
    type(np.dtype(np.uint32)),
    _codecs.encode,
]


class CheckpointUnreadable(Exception):
    """The files are not those of a veRL checkpoint, or not all of them, or hold what is no tensor."""


@dataclass(frozen=True)
class Piece:
    """Part of a tensor, from `start` along the dimension in which it is cut."""

    start: int
    tensor: torch.Tensor


@dataclass(frozen=True)
class Pieced:
    """A tensor of `shape`, cut along `dim`."""

    shape: tuple[int, ...]
    dim: int
    pieces: tuple[Piece, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.pieces[0].tensor.dtype

    def whole(self) -> torch.Tensor:
        """All of it, in memory; of a single piece, that piece as it is mapped."""
        tensors = [piece.tensor for piece in self.pieces]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=self.dim)

    def copy_to(self, into: torch.Tensor, offsets: Sequence[int]) -> None:
        """Fill `into` with the box of its shape that begins at `offsets`; beyond the pieces it stays as it is."""
        if not self.shape:
            into.copy_(self.pieces[0].tensor)
            return
        first, last = offsets[self.dim], offsets[self.dim] + into.shape[self.dim]
        for piece in self.pieces:
            low, high = max(first, piece.start), min(last, piece.start + piece.tensor.shape[self.dim])
            if low >= high:
                continue
            found = piece.tensor.narrow(self.dim, low - piece.start, high - low)
            for dim, (offset, size) in enumerate(zip(offsets, into.shape, strict=True)):
                found = found if dim == self.dim else found.narrow(dim, offset, size)
            into.narrow(self.dim, low - first, high - low).copy_(found)


class Shards:
    """What the ranks have written of one model: the directory `actor` or `critic` of a checkpoint.

    `fsdp_version` is 1 or 2; None where nothing says so.
    """

    def __init__(self, directory: Path) -> None:
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        found = [match for name in sorted(names) if (match := _NAME.match(name))]
        if not found:
            raise CheckpointUnreadable(f"{directory} holds no model_world_size_W_rank_R.pt: it is no veRL checkpoint")
        if len({match[1] for match in found}) > 1:
            raise CheckpointUnreadable(f"{directory} holds files of several numbers of ranks: {_listed(found)}")
        self.directory = directory
        self.ranks = int(found[0][1])
        if len(found) < self.ranks:
            raise CheckpointUnreadable(
                f"{directory} holds {len(found)} of {self.ranks} ranks: its save was interrupted"
            )
        facts = directory / FACTS_FILE
        said = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}
        self.fsdp_version: int | None = said.get("FSDP_version")

    def path(self, kind: Kind, rank: int) -> Path:
        return self.directory / f"{kind}_world_size_{self.ranks}_rank_{rank}.pt"

    def of_ranks(self, kind: Kind) -> list[dict[str, Any]]:
        """What each rank has written.

        Raises:
            CheckpointUnreadable: a file is absent, damaged, or holds more than tensors and plain values.
        """
        return [safely_loaded(self.path(kind, rank)) for rank in range(self.ranks)]

    def model(self) -> dict[str, Pieced]:
        """Parameters and buffers by name."""
        states = self.of_ranks("model")
        return {name: pieced([state[name] for state in states]) for name in states[0]}

    def row(self) -> list[int]:
        """The ranks that hold one whole copy of the model between them: all, but of HSDP, where others hold it too."""
        found = safely_loaded(self.path("model", 0)).values()
        return next((_row(tensor) for tensor in found if isinstance(tensor, DTensor)), list(range(self.ranks)))


def safely_loaded(path: Path) -> Any:
    """A torch file, its tensors mapped into memory on the CPU; code in it is not run.

    Raises:
        CheckpointUnreadable: as `Shards.of_ranks`.
    """
    _keep_quiet_about_meshes()
    try:
        with torch.serialization.safe_globals(_OF_RANDOM_STATES):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise CheckpointUnreadable(f"{path} is not there") from error
    except Exception as error:  # torch has no error of its own for a damaged file, nor for one that is refused
        raise CheckpointUnreadable(f"{path} cannot be read: {_first_line(error)}") from error


def pieced(of_ranks: Sequence[torch.Tensor]) -> Pieced:
    """A tensor as the ranks hold it: DTensors that one dimension is cut in, or the same plain tensor everywhere.

    Raises:
        CheckpointUnreadable: it is distributed in another way.
    """
    first = of_ranks[0]
    if not isinstance(first, DTensor):
        return Pieced(tuple(first.shape), 0, (Piece(0, first),))
    *copies, last = first.placements
    row = _row(first)
    shape = tuple(first.shape)
    if all(type(each) is Replicate for each in copies):
        if type(last) is Replicate:
            return Pieced(shape, 0, (Piece(0, first._local_tensor),))
        if type(last) is Shard:
            of_row = [cast(DTensor, of_ranks[rank])._local_tensor for rank in row]
            return Pieced(shape, last.dim, _in_a_row(of_row, last.dim))
    raise CheckpointUnreadable(
        f"a tensor of shape {list(shape)} is distributed as {first.placements}, which FSDP never does"
    )


def _row(tensor: DTensor) -> list[int]:
    """The ranks that hold one whole copy of it between them."""
    mesh = tensor.device_mesh.mesh
    return [int(rank) for rank in mesh.reshape(-1, mesh.shape[-1])[0]]


def in_a_row(tensors: Sequence[torch.Tensor]) -> Pieced:
    """A vector whose parts the ranks hold, one after the other."""
    pieces = _in_a_row(tensors, 0)
    return Pieced((sum(len(tensor) for tensor in tensors),), 0, pieces)


def _in_a_row(tensors: Iterable[torch.Tensor], dim: int) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    start = 0
    for tensor in tensors:
        pieces.append(Piece(start, tensor))
        start += tensor.shape[dim]
    return tuple(pieces)


def _keep_quiet_about_meshes() -> None:
    """The meshes in the files are read, not used: that they have no process group here is no warning."""
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)


def _listed(found: Iterable[re.Match[str]]) -> str:
    return ", ".join(match[0] for match in found)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
