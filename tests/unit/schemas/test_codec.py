"""Whatever is encoded comes back, and whatever else arrives is one typed error."""

import struct
import types
import typing
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.codec import MESSAGES, decode, decode_as, encode
from schemas.errors import SchemaError
from schemas.experiences import Experience, GroupSampled
from schemas.message import Value
from schemas.state import LeaseHeld
from schemas.tasks import TaskReleased

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBERS | TEXT | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def experiences(draw: st.DrawFn) -> Experience:
    prompt, response = draw(st.integers(1, 8)), draw(st.integers(1, 8))

    def array(dtype: type, elements: st.SearchStrategy[Any], length: int) -> np.ndarray[Any, Any]:
        return np.array(draw(st.lists(elements, min_size=length, max_size=length)), dtype=dtype)

    return Experience(
        position=draw(st.integers(0, 100)),
        tokens=array(np.int32, st.integers(0, 2**31 - 1), prompt + response),
        prompt_length=prompt,
        action_mask=array(np.uint8, st.integers(0, 1), response),
        logprobs=array(np.float32, st.floats(-100, 0, width=32), response),
        token_versions=array(np.int32, st.integers(0, 1000), response),
        reward=draw(NUMBERS),
        metrics=draw(st.dictionaries(TEXT, NUMBERS, max_size=3)),
        prompt_text=draw(TEXT),
        response_text=draw(TEXT),
        is_truncated=draw(st.booleans()),
        step=draw(st.integers(0, 5)),
        teacher_logprobs=array(np.float32, st.floats(-100, 0, width=32), response if draw(st.booleans()) else 0),
        state=draw(TEXT),
        step_reward=draw(st.none() | NUMBERS),
    )


PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(1, 2**53),
    float: NUMBERS,
    str: TEXT,
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    Any: ANYTHING,
    type(None): st.none(),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values for the annotation of a field."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return values_of_model(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(values_of(argument) for argument in arguments))
    if origin is typing.Annotated:
        return values_of(arguments[0])
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is np.ndarray:
        dtype = typing.get_args(arguments[1])[0]
        number = st.floats(-1e6, 1e6, width=32) if issubclass(dtype, np.floating) else st.integers(0, 255)
        return st.lists(number, max_size=4).map(lambda values: np.asarray(values, dtype))
    assert origin is tuple, annotation
    return st.lists(values_of(arguments[0]), min_size=1, max_size=3).map(tuple)


def values_of_model(model: type[Value]) -> st.SearchStrategy[Any]:
    if model is Experience:
        return experiences()
    return st.builds(model, **{name: values_of(info.annotation) for name, info in model.model_fields.items()})


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_comes_back_as_it_was(name):
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values_of_model(MESSAGES[name]))
    def comes_back(message: Any) -> None:
        payload = encode(message)
        again = decode(payload)
        assert again == message
        assert type(again) is type(message)
        assert encode(again) == payload

    comes_back()


@given(st.binary(max_size=400))
def test_random_bytes_are_a_schema_error(payload):
    with pytest.raises(SchemaError):
        decode(payload)


def test_every_truncation_is_a_schema_error(examples):
    for message in examples.values():
        payload = encode(message)
        for length in range(len(payload)):
            with pytest.raises(SchemaError):
                decode(payload[:length])


def test_trailing_bytes_are_a_schema_error(group):
    with pytest.raises(SchemaError):
        decode(encode(group) + b"\x00")


def test_a_flipped_bit_gives_a_message_or_a_schema_error(examples):
    for message in examples.values():
        payload = bytearray(encode(message))
        for place in range(len(payload)):
            for bit in (0, 3, 7):
                payload[place] ^= 1 << bit
                try:
                    decode(bytes(payload))
                except SchemaError:
                    pass
                payload[place] ^= 1 << bit


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_deep_nesting_is_a_schema_error(depth, opening, envelope):
    with pytest.raises(SchemaError):
        decode(opening * depth + b"\xc0")
    body = {"holder": "h", "term": 1, "renewed_at": 0.0}
    head = envelope(schema="lease_held", version=1, body=body)
    with pytest.raises(SchemaError):
        decode(head.replace(msgpack.packb("h"), opening * depth + b"\xc0", 1))


@pytest.mark.parametrize("depth", [50, 200, 400, 500, 510, 900])
def test_deep_values_in_an_open_field_give_a_message_or_a_schema_error(depth, examples):
    row: Any = None
    for _ in range(depth):
        row = [row]
    whole = msgpack.unpackb(encode(examples["task_released"]))
    whole["body"]["row"] = {"deep": row}
    try:
        assert isinstance(decode(msgpack.packb(whole)), TaskReleased)
    except SchemaError:
        pass


@pytest.mark.parametrize("head", [b"\xdf", b"\xdd", b"\xc6", b"\xdb", b"\xc9"])
def test_huge_declared_lengths_are_a_schema_error(head):
    with pytest.raises(SchemaError):
        decode(head + b"\xff\xff\xff\xff" + b"\x00" * 16)
    with pytest.raises(SchemaError):
        decode(b"\x83\xa6schema\xaalease_held\xa7version\x01\xa4body" + head + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x80", b"\x90", b"null", b"{}", b"\x81\xa6schema\xa1x"])
def test_what_is_no_envelope_is_a_schema_error(payload):
    with pytest.raises(SchemaError):
        decode(payload)


@pytest.mark.parametrize("version", [0, 2, -1, 2**40, "1", None, 1.5, [1]])
def test_another_version_is_a_schema_error_that_names_the_schema(version, envelope):
    with pytest.raises(SchemaError, match="version") as raised:
        decode(envelope(schema="lease_held", version=version, body={"holder": "h", "term": 1, "renewed_at": 0.0}))
    assert raised.value.schema == "lease_held"


@pytest.mark.parametrize("name", ["nobody_knows", "", 7, None, ["lease_held"], {"a": 1}])
def test_an_unknown_schema_is_a_schema_error(name, envelope):
    with pytest.raises(SchemaError, match="unknown schema"):
        decode(envelope(schema=name, version=1, body={}))


@pytest.mark.parametrize(
    "body",
    [
        {},
        None,
        [],
        {"holder": "h", "term": 0, "renewed_at": 0.0},
        {"holder": "h", "term": 1, "renewed_at": "soon"},
        {"holder": "h", "term": 1, "renewed_at": 0.0, "extra": 1},
    ],
)
def test_a_body_that_does_not_fit_is_a_schema_error(body, envelope):
    with pytest.raises(SchemaError) as raised:
        decode(envelope(schema="lease_held", version=1, body=body))
    assert raised.value.schema == "lease_held"


def test_a_field_added_with_a_default_is_filled_in(envelope, examples):
    whole = msgpack.unpackb(encode(examples["task_abandoned"]))
    del whole["body"]["abandoned_at"]
    assert decode(msgpack.packb(whole)) == examples["task_abandoned"].model_copy(update={"abandoned_at": 0.0})


def test_another_kind_than_expected_is_a_schema_error(group):
    assert decode_as(GroupSampled, encode(group)) == group
    with pytest.raises(SchemaError, match="group_sampled where lease_held"):
        decode_as(LeaseHeld, encode(group))


def body_of(group: Any) -> dict[str, Any]:
    return msgpack.unpackb(encode(group))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", b"\x01\x00\x00"),
        ("tokens", [1, 2, 3, 4, 5]),
        ("tokens", b""),
        ("tokens", struct.pack("<5i", 1, 2, 3, 4, -5)),
        ("tokens", struct.pack("<4i", 1, 2, 3, 4)),
        ("tokens", "text"),
        ("action_mask", b"\x01\x02\x00"),
        ("action_mask", b"\x01"),
        ("logprobs", struct.pack("<3f", 0.0, float("nan"), 0.0)),
        ("logprobs", struct.pack("<3f", 0.0, float("inf"), 0.0)),
        ("logprobs", struct.pack("<2f", 0.0, 0.0)),
        ("token_versions", struct.pack("<4i", 0, 0, 0, 0)),
        ("reward", float("nan")),
        ("prompt_length", 5),
        ("prompt_length", 0),
    ],
)
def test_arrays_that_break_their_rules_are_a_schema_error(group, field, value):
    whole = body_of(group)
    if field == "tokens" and isinstance(value, list):
        value = [-1]
    whole["body"]["experiences"][0][field] = value
    with pytest.raises(SchemaError):
        decode(msgpack.packb(whole))


def test_a_conversion_that_changes_a_number_is_refused():
    good = {
        "position": 0,
        "tokens": [1, 2],
        "prompt_length": 1,
        "action_mask": [1],
        "logprobs": [0.0],
        "token_versions": [0],
        "reward": 0.0,
    }
    assert Experience(**good).response_length == 1
    for field, value in (("tokens", [1, 2**40]), ("tokens", [1.5, 2.0]), ("action_mask", [256]), ("tokens", [[1, 2]])):
        with pytest.raises(ValidationError):
            Experience(**{**good, field: value})
