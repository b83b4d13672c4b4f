"""Denials as answers: the server says no in a message of its own, which names a subject and no request.

Without this, whoever asked would only hear nothing, and would time out again and again.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

T = TypeVar("T")

_DENIAL = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_LOOK_AGAIN_S = 0.1
NO_TLS = "the server offers no TLS, and this connection asks for it"


class Denied(nats.errors.Error):
    """The server does not allow a subject to this connection."""


class Denials:
    """What the server has denied to one connection, told to those who wait for an answer on that subject."""

    def __init__(self, who: str, inbox: str) -> None:
        self._who = who
        self._inbox = inbox.lower()
        self._waiting: dict[str, set[asyncio.Future[str]]] = {}
        self._deaf: str | None = None

    def note(self, text: str) -> str | None:
        """Take up a word of the server. What was denied, in words; None where it is about something else."""
        found = _DENIAL.search(text)
        if found is None:
            return None
        kind, subject = found[1].lower(), found[2]
        waiting = self._waiting.get(subject.lower(), set())
        if kind == "subscription" and subject.lower().startswith(self._inbox):
            self._deaf = f"{self._who} may not hear the answers to its own requests in {subject}: {text}"
            waiting = {each for some in self._waiting.values() for each in some}
        for each in waiting:
            if not each.done():
                each.set_result(text)
        return self._words("publish to" if kind == "publish" else "subscribe to", subject, text)

    def enlist(self, subject: str, told: "asyncio.Future[Any]") -> None:
        """Have `told` set to the server's text when it denies `subject`, until `dismiss`.

        Raises:
            Denied: no answer could be heard at all.
        """
        if self._deaf is not None:
            raise Denied(self._deaf)
        self._waiting.setdefault(subject.lower(), set()).add(told)

    def dismiss(self, subject: str, told: "asyncio.Future[Any]") -> None:
        waiting = self._waiting.get(subject.lower())
        if waiting is not None:
            waiting.discard(told)
            if not waiting:
                del self._waiting[subject.lower()]

    def denied(self, subject: str, text: str) -> Denied:
        """The error of a publish to `subject` that the server has denied with `text`."""
        return Denied(self._deaf or self._words("publish to", subject, text))

    async def unless_denied(self, subject: str, answer: Coroutine[Any, Any, T]) -> T:
        """The answer to a request to `subject`.

        Raises:
            Denied: the server allows the subject, or the answer to it, to another role only.
        """
        denied: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asking = asyncio.ensure_future(answer)
        try:
            self.enlist(subject, denied)
            await asyncio.wait((asking, denied), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise self.denied(subject, denied.result())
        finally:
            self.dismiss(subject, denied)
            await _ended(asking)

    def _words(self, act: str, subject: str, text: str) -> str:
        return (
            f"{self._who} may not {act} {subject} ({text}): start it with the credentials of a role that may "
            "(bus.credentials; docs/security.md says who may do what)"
        )


async def _ended(asking: "asyncio.Future[Any]") -> None:
    """Cancel as often as it takes: the client swallows a cancellation that meets it while it flushes."""
    while not asking.done():
        asking.cancel()
        await asyncio.wait((asking,), timeout=_LOOK_AGAIN_S)
    if not asking.cancelled():
        asking.exception()


class RefusableClient(Client):
    """The client library's client, whose requests end when the server denies their subject.

    With `needs_tls` it says nothing to a server that does not offer TLS, which the library would do in the clear.
    """

    def __init__(self, denials: Denials, needs_tls: bool) -> None:
        super().__init__()
        self._denials = denials
        self._needs_tls = needs_tls

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        return await self._denials.unless_denied(subject, self._asked(subject, *args, **options))

    async def _asked(self, subject: str, *args: Any, **options: Any) -> Msg:
        """What is asked while the connection is lost would be kept, and sent when nobody waits for it any more."""
        if self.is_reconnecting:
            raise nats.errors.ConnectionReconnectingError
        return await super().request(subject, *args, **options)

    def _connect_command(self) -> bytes:
        if self._needs_tls and not self._server_info.get("tls_required"):
            raise nats.errors.Error(NO_TLS)
        command: Callable[[], bytes] = super()._connect_command
        return command()
