"""One-dimensional arrays that travel as raw little-endian bytes, never as lists of numbers."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, PlainSerializer, PlainValidator, WithJsonSchema

ARRAYS = ConfigDict(arbitrary_types_allowed=True)


def _reader(dtype: np.dtype[Any]) -> Callable[[object], npt.NDArray[Any]]:
    size, is_float = dtype.itemsize, dtype.kind == "f"

    def read(value: object) -> npt.NDArray[Any]:
        if isinstance(value, bytes):
            if len(value) % size:
                raise ValueError(f"{len(value)} bytes are not a whole number of {size}-byte elements")
            array: npt.NDArray[Any] = np.frombuffer(value, dtype)
        else:
            array = _converted(value, dtype)
        if array.ndim != 1:
            raise ValueError(f"an array of {array.ndim} dimensions where one is wanted")
        if is_float and 0 in np.isfinite(array).tobytes():
            raise ValueError("not every number is finite")
        return array

    return read


def _converted(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Values in the process's own memory: a conversion that changes a number is refused."""
    if not isinstance(value, (np.ndarray, list, tuple)):
        raise ValueError(f"{type(value).__name__} is neither raw bytes nor an array")
    array = np.asarray(value)
    if array.size == 0:
        return np.zeros(0, dtype=dtype)
    if dtype.kind != "f" and array.dtype.kind not in "iub":
        raise ValueError(f"numbers of type {array.dtype} where {dtype} are wanted")
    converted = np.ascontiguousarray(array, dtype=dtype)
    if dtype.kind != "f" and not np.array_equal(converted, array):
        raise ValueError(f"numbers that do not fit {dtype}")
    return converted


def _array(code: str) -> tuple[PlainValidator, PlainSerializer, WithJsonSchema]:
    dtype = np.dtype(code)
    return (
        PlainValidator(_reader(dtype)),
        PlainSerializer(lambda array: array.tobytes(), return_type=bytes),
        WithJsonSchema({"type": "string", "contentEncoding": "binary", "description": f"raw array of {code}"}),
    )


Int32Array = Annotated[npt.NDArray[np.int32], *_array("<i4")]
Float32Array = Annotated[npt.NDArray[np.float32], *_array("<f4")]
MaskArray = Annotated[npt.NDArray[np.uint8], *_array("|u1")]
