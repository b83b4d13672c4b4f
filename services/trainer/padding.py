"""Rows of different lengths as one padded tensor, and back."""

from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.trainer.backends.port import Floats


def padded(rows: Rows[npt.NDArray[Any]]) -> torch.Tensor:
    """Float32, `B x T`, zeros behind the end of each row."""
    values_B_T = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.float32)
    for place, row in enumerate(rows):
        values_B_T[place, : len(row)] = row
    return torch.from_numpy(values_B_T)


def unpadded(values_B_T: torch.Tensor, lengths: Rows[int]) -> list[Floats]:
    """The rows again, each of its own length."""
    return [
        row[:length].to(torch.float32).numpy().copy() for row, length in zip(values_B_T.cpu(), lengths, strict=True)
    ]
