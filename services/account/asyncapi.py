"""The public description of the bus as an AsyncAPI 3.0 document, made from the schemas and the table of subjects.

`python -m services.account.asyncapi docs/asyncapi.yaml` writes the document that is shipped.
"""

import re
import sys
from pathlib import Path
from typing import Any, get_args

import yaml

from bus.delivery import CLAIM_HEADER
from bus.leasing import lease_key, term_key
from bus.subjects import MESSAGE_IDS, SUBJECTS, Stream, bucket_name, chunk_subject, stream_name
from schemas.blobs import BlobClaimed
from schemas.codec import MESSAGES
from schemas.message import Message
from schemas.reports import Quarantined, ServiceName
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
from services.runtime.keys import (
    CHOICES,
    DECLARED,
    EXCUSES,
    FINISHED,
    INCARNATION,
    LEADER,
    MEMBERS,
    OFFERS,
    RECEIPTS,
    RELEASE,
    SLOTS,
    STORED,
    TRAIN,
)

Document = dict[str, Any]

INFO: Document = {
    "title": "Trinity-RFT on NATS JetStream",
    "version": "1.0.0",
    "license": {"name": "Apache-2.0"},
    "description": (
        "Every message that the services of one run exchange. A payload is msgpack: a map of `schema`, `version` and "
        "`body`. An array is the raw little-endian bytes of its elements (`<i4` int32, `<f4` float32, `|u1` uint8), "
        "never a list of numbers. `{run}` is the run's name made safe for subjects. A field is never changed, only "
        "added with a default; what a schema here requires is what a reader needs, and writers send every field."
    ),
}
PARAMETERS = {
    "run": "The run `<project>/<name>` as one token of a subject.",
    "taskset": "The name of the taskset, as one token.",
    "explorer": "The member's name of the explorer, as one token.",
    "service": f"One of {', '.join(get_args(ServiceName))}.",
    "source": "The member's name of the service, as one token.",
    "evaluator": "The member's name of the evaluator, as one token.",
    "stream": "The stream that the message was found on: tasks, experiences, weights or metrics.",
    "digest": "SHA-256 of the whole blob, in hexadecimal.",
    "number": "Which chunk of the blob, from 0.",
    "member": "The member's name, escaped as keys are.",
    "ordinal": "The ordinal of the task.",
    "history": "The id of the database of conversations.",
    "sequence": "The sequence that the message had in the stream.",
}
KEYS: dict[str, type[Message]] = {
    DECLARED: RunDeclared,
    RELEASE: ReleaseProgress,
    TRAIN: TrainProgress,
    INCARNATION: IncarnationTaken,
    STORED: StoreProgress,
    lease_key(LEADER): LeaseHeld,
    term_key(LEADER): LeaseHeld,
    f"{MEMBERS}{{service}}.{{member}}": MemberSeen,
    f"{OFFERS}{{taskset}}": TasksetOffered,
    f"{CHOICES}{{taskset}}": RowsChosen,
    f"{EXCUSES}{{ordinal}}": TaskExcused,
    f"{FINISHED}{{history}}": ConversationsFinished,
    f"{SLOTS}{{ordinal}}": SlotClaimed,
    f"{RECEIPTS}{{stream}}.{{sequence}}": Quarantined,
}


class _Named(str):
    """A stand-in for a message: each field is its own name, so that a subject shows what it is made of."""

    def __getattr__(self, name: str) -> "_Named":
        return _Named(f"--{name}--")


def document() -> Document:
    """The whole description. The same schemas always give the same document."""
    return {
        "asyncapi": "3.0.0",
        "info": INFO,
        "defaultContentType": "application/msgpack",
        "servers": {"bus": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "Where bus.url points."}},
        "channels": {**_streams(), "blobs": _blobs(), **_keys()},
        "components": {
            "messages": {name: _message(kind) for name, kind in MESSAGES.items()},
            "schemas": _schemas(),
        },
    }


def rendered() -> str:
    """The document as YAML."""
    text: str = yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)
    return text


def _streams() -> Document:
    """One channel for each subject of the table, with the messages that travel on it."""
    channels: Document = {}
    for kind, (stream, subject) in SUBJECTS.items():
        address = _shown(subject(_Named()))
        name = "reports" if ".reports." in address else str(stream)
        channel = channels.setdefault(name, _channel(address, stream_name(_Named().run, stream)))
        channel["messages"] |= _references(kind, BlobClaimed)
    return channels


def _blobs() -> Document:
    fields = _Named()
    channel = _channel(
        _shown(chunk_subject(fields.run, fields.digest, fields.number)), stream_name(fields.run, Stream.BLOBS)
    )
    chunk = {
        "contentType": "application/octet-stream",
        "description": "Bytes of one chunk; the header `trinity-chunks` says how many chunks there are.",
        "payload": {"type": "string", "contentEncoding": "binary"},
    }
    return {**channel, "messages": {"chunk": chunk}}


def _keys() -> Document:
    """One channel for each key of the run's key-value store."""
    channels: Document = {}
    for key, kind in KEYS.items():
        bucket = bucket_name(_Named().run, key)
        name = "key_" + re.sub(r"\.?\{\w+\}", "", key).replace(".", "_")
        channel = _channel(_shown(f"$KV.{bucket}.{key}"), f"KV_{bucket}")
        channels[name] = {**channel, "messages": _references(kind)}
    return channels


def _channel(address: str, stream: str) -> Document:
    parameters = {name: {"description": PARAMETERS[name]} for name in re.findall(r"\{(\w+)\}", address)}
    return {"address": address, "messages": {}, "parameters": parameters, "x-stream": _shown(stream)}


def _references(*kinds: type[Message]) -> Document:
    return {kind.schema_name: {"$ref": f"#/components/messages/{kind.schema_name}"} for kind in kinds}


def _message(kind: type[Message]) -> Document:
    described = " ".join((kind.__doc__ or "").split())
    envelope = {
        "type": "object",
        "additionalProperties": False,
        "required": ["schema", "version", "body"],
        "properties": {
            "schema": {"const": kind.schema_name},
            "version": {"const": kind.schema_version},
            "body": {"$ref": f"#/components/schemas/{kind.__name__}"},
        },
    }
    headers = {"headers": _headers(kind)} if kind in SUBJECTS else {}
    return {"name": kind.schema_name, "title": kind.__name__, "description": described, **headers, "payload": envelope}


def _headers(kind: type[Message]) -> Document:
    """The headers that a message of this kind carries, so that the plain `nats` command can show them."""
    identify = MESSAGE_IDS.get(kind)
    told = f"`{_shown(identify(_Named()))}`" if identify else "a new random id for each publish"
    properties = {
        "Nats-Msg-Id": {"type": "string", "description": f"The server keeps one message of an id: {told}."},
        "trinity-schema": {"const": kind.schema_name},
        "trinity-run": {"type": "string", "description": "The name of the run."},
    }
    if {"weights", "floor"} & set(kind.model_fields):
        properties["trinity-version"] = {"type": "string", "description": "`<incarnation>.<version>` of the weights."}
    if "task" in kind.model_fields:
        properties["trinity-task"] = {"type": "string", "description": "`<taskset>/<epoch>/<index>` of the task."}
    claim = "Digest of the blob, where the payload is a `blob_claimed` in place of this message."
    properties[CLAIM_HEADER] = {"type": "string", "description": claim}
    return {"type": "object", "properties": properties}


def _schemas() -> Document:
    schemas: Document = {}
    for kind in MESSAGES.values():
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[kind.__name__] = schema
    return {name: _plain(schemas[name]) for name in sorted(schemas)}


def _plain(node: Any) -> Any:
    """A schema without pydantic's titles, and with descriptions of one line."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _plain(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split())
    return kept


def _shown(address: str) -> str:
    """Stand-ins as AsyncAPI writes parameters."""
    return re.sub(r"--(\w+?)--", r"{\1}", address)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(rendered(), encoding="utf-8")
