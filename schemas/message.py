"""The base of every message: frozen, closed to unknown fields, with a name and a version on the wire.

A published field is never changed; a new one is added with a default, so that old bytes decode for ever.
"""

from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen part of a message. Equality compares arrays by their contents."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in type(self).model_fields)

    __hash__ = None  # type: ignore[assignment]


class Message(Value):
    """What one service says to others. `schema_name` and `schema_version` stand in front of the body."""

    schema_name: ClassVar[str]
    schema_version: ClassVar[int] = 1


def _same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return left == right
