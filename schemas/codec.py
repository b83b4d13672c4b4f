"""Messages to bytes and back: a versioned msgpack envelope. Whatever is wrong with bytes is a `SchemaError`.

The envelope is the map `{"schema": name, "version": n, "body": {...}}`.
"""

from typing import Any, TypeVar

import msgpack
from pydantic import ValidationError

from schemas.blobs import BlobClaimed
from schemas.errors import SchemaError
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from schemas.reports import EvaluationReported, MetricsReported, Quarantined
from schemas.serving import ConversationsFinished, SlotClaimed
from schemas.state import (
    IncarnationTaken,
    LeaseHeld,
    MemberSeen,
    ReleaseProgress,
    RowsChosen,
    RunDeclared,
    StoreProgress,
    TaskExcused,
    TasksetOffered,
    TrainProgress,
)
from schemas.tasks import TaskReleased
from schemas.weights import WeightsAnnounced

MESSAGES: dict[str, type[Message]] = {
    message.schema_name: message
    for message in (
        TaskReleased,
        GroupSampled,
        TaskAbandoned,
        WeightsAnnounced,
        EvaluationReported,
        MetricsReported,
        Quarantined,
        BlobClaimed,
        RunDeclared,
        MemberSeen,
        LeaseHeld,
        ReleaseProgress,
        TrainProgress,
        IncarnationTaken,
        TasksetOffered,
        TaskExcused,
        StoreProgress,
        RowsChosen,
        ConversationsFinished,
        SlotClaimed,
    )
}

MAX_DECODED_BYTES = 1 << 30
_GROUP_FIELDS, _EXPERIENCE_FIELDS = tuple(GroupSampled.model_fields), tuple(Experience.model_fields)
_ARRAY_FIELDS = ("tokens", "action_mask", "logprobs", "token_versions", "teacher_logprobs")
_ENVELOPE_KEYS = {"schema", "version", "body"}

M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The bytes of `message`. The same message always gives the same bytes."""
    body = _group_body(message) if type(message) is GroupSampled else message.model_dump(mode="python")
    packed = msgpack.packb(
        {"schema": message.schema_name, "version": message.schema_version, "body": body}, use_bin_type=True
    )
    return bytes(packed)


def decode(payload: bytes) -> Message:
    """The message in `payload`.

    Raises:
        SchemaError: the bytes are truncated, hostile, of an unknown schema or version, or do not fit the schema.
    """
    envelope = _unpacked(payload)
    name, version = envelope["schema"], envelope["version"]
    if not isinstance(name, str) or name not in MESSAGES:
        raise SchemaError(f"unknown schema {str(name)[:80]!r}")
    schema = MESSAGES[name]
    if version != schema.schema_version:
        raise SchemaError(f"version {str(version)[:20]} of {name}, where {schema.schema_version} is known", name)
    try:
        return schema.model_validate(envelope["body"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{name}: {where or 'message'}: {first['msg']} ({error.error_count()} in all)"
        raise SchemaError(reason, name) from None
    except (RecursionError, OverflowError) as error:
        raise SchemaError(f"{name}: {type(error).__name__}", name) from None


def decode_as(kind: type[M], payload: bytes) -> M:
    """`decode`, where only one kind of message is expected."""
    message = decode(payload)
    if not isinstance(message, kind):
        raise SchemaError(f"{message.schema_name} where {kind.schema_name} is expected", message.schema_name)
    return message


def _group_body(group: GroupSampled) -> dict[str, Any]:
    """What `model_dump` gives, but with views of the arrays: their bytes are copied once, into the envelope."""
    fields = vars(group)
    body = {name: fields[name] for name in _GROUP_FIELDS}
    body["task"] = group.task.model_dump(mode="python")
    body["experiences"] = [_experience_body(vars(experience)) for experience in group.experiences]
    return body


def _experience_body(fields: dict[str, Any]) -> dict[str, Any]:
    body = {name: fields[name] for name in _EXPERIENCE_FIELDS}
    for name in _ARRAY_FIELDS:
        array = body[name]
        body[name] = array.data if array.flags.c_contiguous else array.tobytes()
    return body


def _unpacked(payload: bytes) -> dict[str, object]:
    if len(payload) > MAX_DECODED_BYTES:
        raise SchemaError(f"{len(payload)} bytes, where at most {MAX_DECODED_BYTES} are decoded")
    try:
        envelope = msgpack.unpackb(payload, raw=False, strict_map_key=True, use_list=True)
    except Exception as error:  # noqa: BLE001 - the unpacker's own errors share no base class
        raise SchemaError(f"not msgpack: {type(error).__name__}: {str(error)[:120]}") from None
    if not isinstance(envelope, dict) or set(envelope) != _ENVELOPE_KEYS:
        raise SchemaError("not an envelope of schema, version and body")
    return envelope
