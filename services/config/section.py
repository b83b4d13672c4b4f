"""The base of every configuration section: frozen, and strict about what it does not know."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A group of keys that one part of the system owns."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_plainly(cls, value: object, info: ValidationInfo) -> object:
        """Take an empty section (`explorer:` with nothing below) as its defaults; refuse `true` as a number."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if value is None and isinstance(annotation, type) and issubclass(annotation, Section):
            return {}
        if isinstance(value, bool) and not accepts(annotation, bool):
            raise ValueError("must not be true or false")
        return value


def accepts(annotation: object, kind: type) -> bool:
    """Whether a field of this annotation takes values of `kind`."""
    if annotation is Any or annotation is kind:
        return True
    return any(accepts(arm, kind) for arm in get_args(annotation))
