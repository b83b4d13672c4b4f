"""Bytes that were once published decode for ever: one kept example of every message.

`TRINITY_WRITE_GOLDEN=1` writes the files anew, which is right for a new message, a new field or a new version. Where a
field was added, the bytes without it move to `golden/older` first: they go on decoding, to the field's default.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from pydantic.fields import FieldInfo

from schemas.codec import MESSAGES, decode, encode
from schemas.message import Value

GOLDEN = Path(__file__).parents[2] / "golden"


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name}.v{MESSAGES[name].schema_version}.msgpack"


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_kept_bytes_decode_to_the_same_values_and_encode_to_the_same_bytes(name, examples):
    file = golden_file(name)
    if os.environ.get("TRINITY_WRITE_GOLDEN") == "1":
        file.write_bytes(encode(examples[name]))
    payload = file.read_bytes()
    assert decode(payload) == examples[name]
    assert encode(examples[name]) == payload
    assert encode(decode(payload)) == payload


@pytest.mark.parametrize("file", sorted((GOLDEN / "older").glob("*.msgpack")), ids=lambda file: file.stem)
def test_bytes_from_before_a_field_was_added_decode_to_its_default(file, examples):
    found = decode(file.read_bytes())
    example = examples[found.schema_name]
    assert is_older(found, example)
    assert found != example


def is_older(found: object, example: object) -> bool:
    """Whether `found` is the example, but for fields that have their defaults."""
    if isinstance(found, tuple) and isinstance(example, tuple):
        return len(found) == len(example) and all(map(is_older, found, example))
    if not isinstance(found, Value) or type(found) is not type(example):
        return bool(np.array_equal(found, example))
    return all(
        is_older(getattr(found, field), getattr(example, field)) or is_older(getattr(found, field), default_of(info))
        for field, info in type(found).model_fields.items()
    )


def default_of(info: FieldInfo) -> object:
    return info.get_default(call_default_factory=True, validated_data={})


def test_there_is_an_example_and_a_file_of_every_message(examples):
    assert set(examples) == set(MESSAGES)
    assert {file.name.split(".")[0] for file in GOLDEN.glob("*.msgpack")} == set(MESSAGES)


def test_every_field_of_an_example_differs_from_its_default(examples):
    """So that a golden file notices when a field is renamed or dropped."""
    same = {
        f"{name}.{field}"
        for name, message in examples.items()
        for field, info in type(message).model_fields.items()
        if not info.is_required() and getattr(message, field) == info.default
    }
    assert same <= {"weights_announced.method", "train_progress.is_finished"}


def test_arrays_travel_as_raw_little_endian_bytes(group):
    payload = encode(group)
    assert b"\x01\x00\x00\x00\x50\xc3\x00\x00\xff\xff\xff\x7f\x07\x00\x00\x00\x08\x00\x00\x00" in payload
    assert b"\x00\x00\x00\xbf\x00\x00\xa0\xbf\x00\x00\x00\xbc" in payload
