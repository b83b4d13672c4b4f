"""The shipped description of the bus is the one that the schemas and subjects give, and it tells the truth."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bus.subjects import MESSAGE_IDS, SUBJECTS, stream_name
from schemas.codec import MESSAGES, decode
from schemas.message import Message
from services.account.asyncapi import document, rendered

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "docs" / "asyncapi.yaml"
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.msgpack"))


def _spoken() -> list[Message]:
    """One example of every message that travels on a stream."""
    return [message for message in (decode(path.read_bytes()) for path in GOLDEN) if type(message) in SUBJECTS]


def _pattern(address: str) -> str:
    return re.sub(r"\\\{\w+\\\}", "[A-Za-z0-9_-]+", re.escape(address))


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [found for value in node.values() for found in _references(value)]


def test_the_shipped_file_is_the_generated_one() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == rendered(), (
        "run `python -m services.account.asyncapi docs/asyncapi.yaml`"
    )


def test_every_message_has_a_channel() -> None:
    on_channels = {name for channel in document()["channels"].values() for name in channel["messages"]}
    assert on_channels == {*MESSAGES, "chunk"}


def test_every_reference_is_there() -> None:
    described = yaml.safe_load(rendered())
    for reference in set(_references(described)):
        node = described
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_there_is_an_example_of_every_message_of_a_stream() -> None:
    assert {type(message) for message in _spoken()} == set(SUBJECTS)


@pytest.mark.parametrize("message", _spoken(), ids=lambda message: message.schema_name)
def test_a_message_travels_on_the_address_that_is_described(message: Message) -> None:
    channels = [c for c in document()["channels"].values() if message.schema_name in c["messages"]]
    (channel,) = [channel for channel in channels if not channel["address"].startswith("$KV.")]
    stream, subject = SUBJECTS[type(message)]
    assert re.fullmatch(_pattern(channel["address"]), subject(message))
    assert re.fullmatch(_pattern(channel["x-stream"]), stream_name("project/name", stream))


@pytest.mark.parametrize("kind", MESSAGE_IDS, ids=lambda kind: kind.schema_name)
def test_the_id_of_a_message_is_described_by_its_fields(kind: type[Message]) -> None:
    headers = document()["components"]["messages"][kind.schema_name]["headers"]["properties"]
    (template,) = re.findall(r"`(.+)`", headers["Nats-Msg-Id"]["description"])
    (message,) = [message for message in _spoken() if type(message) is kind]
    pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))
    assert re.fullmatch(pattern, MESSAGE_IDS[kind](message))


def test_arrays_are_binary_strings() -> None:
    fields = document()["components"]["schemas"]["Experience"]["properties"]
    kinds = {name: (fields[name]["type"], fields[name]["contentEncoding"]) for name in ("tokens", "logprobs")}
    assert kinds == {"tokens": ("string", "binary"), "logprobs": ("string", "binary")}
    assert fields["action_mask"]["description"] == "raw array of |u1"
