"""The key-value store of a run: values with a time to live, and compare-and-set.

A value is set by a raw publish, because the client's own update cannot carry a time to live and would make a lease
immortal. A key that was deleted leaves a marker for a while; for us it does not exist.
"""

import asyncio
import functools
import json
import math
import re
from dataclasses import dataclass
from urllib.parse import unquote

import nats.errors
import nats.js.errors
import structlog
from nats.aio.msg import Msg
from nats.js import api

from bus.connection import Connection
from bus.errors import BusRefused, RevisionConflict
from bus.port import Revised
from bus.retrying import Patience
from bus.topology import MARKER_TTL_S
from schemas.codec import decode, encode
from schemas.errors import SchemaError
from schemas.message import Message

log = structlog.get_logger()

_OPERATION, _MARKER = "KV-Operation", "Nats-Marker-Reason"
_DELETION = {_OPERATION: "DEL"}


def safe_key(key: str) -> str:
    """`key` in the characters that keys may have, so that no two meet and `plain_key` gives it back."""
    if not key:
        raise ValueError("a key is empty")
    escaped = "".join(_escaped(byte) for byte in key.encode())
    return re.sub(r"^\.|(?<=\.)\.|\.$", "=2E", escaped)


def plain_key(safe: str) -> str:
    return unquote(safe.replace("=", "%"))


def _escaped(byte: int) -> str:
    character = chr(byte)
    return character if re.match(r"[-_/.A-Za-z0-9]", character) else f"={byte:02X}"


@dataclass(frozen=True)
class Raw:
    """What stands at a key: bytes, or None where only a marker is left."""

    value: bytes | None
    revision: int


class KeyValue:
    """One bucket of a run."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def put(self, key: str, message: Message, ttl_s: float | None = None) -> int:
        return await self._set(key, self._encoded(message), ttl_s, None, None)

    async def get(self, key: str) -> Revised | None:
        raw = await self._raw(key)
        if raw is None or raw.value is None:
            return None
        return _revised(key, raw.value, raw.revision)

    async def swap(
        self, key: str, message: Message, revision: int, ttl_s: float | None = None, deadline_s: float | None = None
    ) -> int:
        """Compare-and-set. A repeated attempt that meets its own value has succeeded.

        Raises:
            RevisionConflict: the key has another revision.
        """
        payload = self._encoded(message)
        try:
            return await self._set(key, payload, ttl_s, revision, deadline_s)
        except RevisionConflict:
            current = await self._raw(key, deadline_s)
            if current is not None and current.value == payload and current.revision > revision:
                return current.revision
            if revision == 0 and current is not None and _is_nothing(key, current):
                return await self._set(key, payload, ttl_s, current.revision, deadline_s)
            raise

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Take the key away; its marker goes by itself."""
        headers = dict(_DELETION)
        if revision is not None:
            headers[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(revision)
        await self._publish(key, b"", headers, MARKER_TTL_S, None)

    async def entries(self, prefix: str) -> list[Revised]:
        """All keys that begin with `prefix`, by key."""
        tokens = prefix.split(".")[:-1]
        wanted = f"{self._prefix}{''.join(safe_key(each) + '.' for each in tokens if each)}>"
        if not all(tokens):
            wanted = f"{self._prefix}>"

        async def request() -> list[Msg]:
            return await self._last_of_each(wanted)

        found = []
        for msg in await Patience(self._connection, f"entries of {prefix}").until_answered(request):
            headers = msg.headers or {}
            key = plain_key(headers["Nats-Subject"].removeprefix(self._prefix))
            if key.startswith(prefix) and not _is_marker(headers):
                found.append(_revised(key, msg.data, int(headers["Nats-Sequence"])))
        return sorted((each for each in found if each is not None), key=lambda each: each.key)

    def _encoded(self, message: Message) -> bytes:
        payload = encode(message)
        if len(payload) > self._connection.largest_payload:
            raise BusRefused(f"{message.schema_name} of {len(payload)} bytes is too large for the key-value store")
        return payload

    async def _set(
        self, key: str, payload: bytes, ttl_s: float | None, revision: int | None, deadline_s: float | None
    ) -> int:
        headers: dict[str, str] = {}
        if revision is not None:
            headers[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(revision)
        whole_ttl_s = None if ttl_s is None else max(1, math.ceil(ttl_s))
        return await self._publish(key, payload, headers, whole_ttl_s, deadline_s)

    async def _publish(
        self, key: str, payload: bytes, headers: dict[str, str], ttl_s: int | None, deadline_s: float | None
    ) -> int:
        subject = self._prefix + safe_key(key)

        async def request() -> api.PubAck:
            js = self._connection.jetstream
            return await js.publish(subject, payload, headers=dict(headers), msg_ttl=ttl_s)

        acked = await Patience(self._connection, f"set of {key}", deadline_s).until_answered(request)
        return acked.seq

    async def _raw(self, key: str, deadline_s: float | None = None) -> Raw | None:
        """The truth about a key, from the stream's leader rather than from any replica."""
        subject = self._prefix + safe_key(key)

        async def request() -> api.RawStreamMsg | None:
            try:
                return await self._connection.jetstream.get_msg(self._stream, subject=subject)
            except nats.js.errors.NotFoundError as error:
                if "stream" in (error.description or ""):
                    raise BusRefused(f"{self._stream} does not exist: declare the run first") from error
                return None

        msg = await Patience(self._connection, f"get of {key}", deadline_s).until_answered(request)
        if msg is None:
            return None
        return Raw(None if _is_marker(msg.headers or {}) else (msg.data or b""), msg.seq or 0)

    async def _last_of_each(self, subject: str) -> list[Msg]:
        """One request, one answer for each key, and a status at the end."""
        client = self._connection.client
        arrived: asyncio.Queue[Msg] = asyncio.Queue()

        async def arrive(msg: Msg) -> None:
            arrived.put_nowait(msg)

        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=arrive, pending_msgs_limit=0, pending_bytes_limit=0)
        found: list[Msg] = []
        try:
            request = json.dumps({"multi_last": [subject]}).encode()
            asked = f"$JS.API.DIRECT.GET.{self._stream}"
            await client.publish(asked, request, reply=inbox)
            while True:
                answer = asyncio.wait_for(arrived.get(), self._connection.settings.request_timeout_s)
                msg = await self._connection.denials.unless_denied(asked, answer)
                status = (msg.headers or {}).get("Status")
                if status in ("204", "404"):
                    return found
                if status is not None:
                    raise nats.js.errors.APIError(
                        code=int(status), description=(msg.headers or {}).get("Description", "")
                    )
                found.append(msg)
        finally:
            if not client.is_closed:
                await subscription.unsubscribe()


def _is_marker(headers: dict[str, str]) -> bool:
    return _MARKER in headers or headers.get(_OPERATION) in ("DEL", "PURGE")


def _is_nothing(key: str, raw: Raw) -> bool:
    return raw.value is None or _revised(key, raw.value, raw.revision) is None


def _revised(key: str, payload: bytes, revision: int) -> Revised | None:
    """Bytes that are no message count as absent: the next value replaces them."""
    try:
        return Revised(key, decode(payload), revision)
    except SchemaError as error:
        _tell_once(key, revision, error.reason)
        return None


@functools.lru_cache(maxsize=1024)
def _tell_once(key: str, revision: int, reason: str) -> None:
    """Keys are looked at every second, and garbage under a key that nobody owns stays."""
    log.error("key_undecodable", key=key, revision=revision, reason=reason)
