"""Are two sets of weights the same, bit by bit? Pure: files in, findings out.

Tensors are compared by their bytes, so that a NaN equals itself and 0.0 differs from -0.0. A torch file is a zip of its
tensors' bytes: files with equal contents are told to be identical without loading them, as loading runs code.
"""

import hashlib
import json
import logging
import mmap
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
_BLOCK_BYTES = 1 << 22

NO_PART_OF_TRAINING = ("rng.random",)
"""Python's own random state: whatever runs in a rank's process (Ray, clients that back off) draws from it, and no step
does. Those of numpy and torch are compared."""


@dataclass(frozen=True)
class Tensor:
    """The bytes of a tensor. `dtype` is safetensors' name of it."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def numbers(self) -> npt.NDArray[np.float64]:
        """Its elements, flat, as numbers that can be subtracted."""
        raw = self.data.view(_DTYPES[self.dtype])
        if self.dtype == "BF16":
            return (raw.astype("<u4") << 16).view("<f4").astype(np.float64)
        return raw.astype(np.float64)


@dataclass(frozen=True)
class Finding:
    """What the comparison of one file or one directory of weights came to.

    `tensors` were compared. Where they differ, `worst` names the tensor with the greatest `max_abs_difference`.
    `reason` says what else is wrong, such as a tensor or a file that one side lacks.
    """

    what: str
    tensors: int = 0
    differing: int = 0
    worst: str = ""
    max_abs_difference: float = 0.0
    reason: str = ""

    @property
    def is_identical(self) -> bool:
        return self.tensors > 0 and not self.differing and not self.reason

    def __str__(self) -> str:
        if self.is_identical:
            return f"{self.what}: bit-identical ({self.tensors} {'tensor' if self.tensors == 1 else 'tensors'})"
        if self.reason:
            return f"{self.what}: {self.reason}"
        return (
            f"{self.what}: {self.differing} of {self.tensors} tensors differ, most of all {self.worst} "
            f"(max abs difference {self.max_abs_difference:.3g})"
        )


def compared(what: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Finding:
    """Two sets of named tensors, held against each other."""
    lacking = sorted(set(left) ^ set(right))
    if lacking:
        names = ", ".join(lacking[:3]) + (" ..." if len(lacking) > 3 else "")
        return Finding(what, reason=f"{len(lacking)} tensors are in one of them only: {names}")
    if not left:
        return Finding(what, reason="there is nothing to compare")
    differences = {name: _difference(left[name], right[name]) for name in left}
    differing = {name: difference for name, difference in differences.items() if difference is not None}
    worst = max(differing, key=lambda name: differing[name] or 0.0, default="")
    return Finding(what, len(left), len(differing), worst, differing.get(worst) or 0.0)


def compared_directories(what: str, left: Path, right: Path) -> Finding:
    """All files of two directories that hold numbers: safetensors, torch files, and state as JSON.

    What is beside the numbers (a tokenizer, a model's configuration) is the same by the run's configuration.
    """
    names = sorted({path.name for side in (left, right) for path in _state_files(side)})
    if not names:
        return Finding(what, reason=f"neither {left} nor {right} holds weights")
    lacking = [name for name in names if not ((left / name).is_file() and (right / name).is_file())]
    if lacking:
        return Finding(what, reason=f"{', '.join(lacking)}: not in both {left} and {right}")
    return joined(what, (compared_files(name, left / name, right / name) for name in names))


def joined(what: str, findings: Iterable[Finding]) -> Finding:
    """Several findings as one."""
    findings = list(findings)
    wrong = next((finding for finding in findings if finding.reason), None)
    if wrong is not None:
        return Finding(what, reason=str(wrong))
    worst = max(findings, key=lambda finding: (finding.differing > 0, finding.max_abs_difference))
    return Finding(
        what,
        sum(finding.tensors for finding in findings),
        sum(finding.differing for finding in findings),
        f"{worst.worst} of {worst.what}" if worst.worst else "",
        worst.max_abs_difference,
    )


def compared_files(what: str, left: Path, right: Path) -> Finding:
    """Two files of one name."""
    if left.suffix == ".safetensors":
        return compared(what, safetensors(left), safetensors(right))
    if left.suffix == ".pt":
        members, others = _members(left), _members(right)
        if members == others:
            return Finding(what, tensors=max(1, sum(name.startswith("data/") for name in members)))
        return compared(what, torch_file(left), torch_file(right))
    same = _digest(left) == _digest(right)
    return Finding(what, tensors=1) if same else Finding(what, reason="its contents differ")


def safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped and not copied."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:begin])
    whole = np.frombuffer(mapped, np.uint8)
    return {
        name: Tensor(about["dtype"], tuple(about["shape"]), whole[begin + offsets[0] : begin + offsets[1]])
        for name, about in header.items()
        if name != "__metadata__"
        for offsets in [about["data_offsets"]]
    }


def torch_file(path: Path) -> dict[str, Tensor]:
    """Every tensor and number in a torch file that training depends on, by where it stands.

    Loading runs the file's code: only for checkpoints of our own.
    """
    import torch

    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # there is no process group, nor need be
    loaded = torch.load(path, map_location="cpu", weights_only=False)
    return {name: tensor for name, tensor in _leaves(loaded, "") if not name.startswith(NO_PART_OF_TRAINING)}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        data = local.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield name, Tensor(_dtype_name(str(local.dtype)), tuple(local.shape), data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        yield name, Tensor(_numpy_name(value.dtype), value.shape, data)
    elif isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{name}[{place}]")
    else:
        text = np.frombuffer(repr(value).encode(), np.uint8)
        yield name, Tensor("U8", text.shape, text)


def _dtype_name(torch_name: str) -> str:
    names = {
        "torch.float64": "F64",
        "torch.float32": "F32",
        "torch.float16": "F16",
        "torch.bfloat16": "BF16",
        "torch.int64": "I64",
        "torch.int32": "I32",
        "torch.int16": "I16",
        "torch.int8": "I8",
        "torch.bool": "BOOL",
    }
    return names.get(torch_name, "U8")


def _numpy_name(dtype: np.dtype[Any]) -> str:
    return next((name for name, code in _DTYPES.items() if np.dtype(code) == dtype and name != "BF16"), "U8")


def _difference(left: Tensor, right: Tensor) -> float | None:
    """None where they are the same; else the greatest difference of an element, infinite where shapes or types do."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return float("inf")
    if np.array_equal(left.data, right.data):
        return None
    if left.dtype not in _DTYPES:
        return float("inf")
    with np.errstate(invalid="ignore"):
        difference = np.abs(left.numbers() - right.numbers())
    return float("inf") if np.isnan(difference).any() else float(difference.max())


def _state_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [
        path
        for path in directory.iterdir()
        if path.is_file() and (path.suffix in (".safetensors", ".pt") or path.name.startswith("fake_"))
    ]


def _members(path: Path) -> dict[str, str]:
    """The digest of every member of a torch file, by its name within the archive's one folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: _digest_of(archive.open(name)) for name in archive.namelist()}


def _digest(path: Path) -> str:
    return _digest_of(path.open("rb"))


def _digest_of(stream: Any) -> str:
    hasher = hashlib.sha256()
    with stream:
        while block := stream.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
