"""One connection to a NATS server: it fails fast at first, and then comes back by itself for ever.

A connection that the client library gives up is dead: every later call raises `BusUnavailable`, so that the service
exits and is started again.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Any

import nats.errors
import structlog
from nats.js import JetStreamContext

from bus.denials import NO_TLS, Denials, RefusableClient
from bus.errors import BusRefused, BusUnavailable
from bus.settings import HEADER_ROOM_BYTES, MIB, BusSettings

log = structlog.get_logger()

RECONNECT_WAIT_S = 0.5
_CLOSE_TIMEOUT_S = 2.0


def without_password(url: str) -> str:
    """The address as it may be shown."""
    return re.sub(r"//[^/@]*@", "//***@", url)


class Connection:
    """A client with its callbacks, and what it knows about its own state."""

    def __init__(self, url: str, name: str, settings: BusSettings) -> None:
        self.url = url
        self.name = name
        self.settings = settings
        credentials = settings.credentials
        who = f"the {credentials.role} of run {credentials.run}" if credentials else f"the user of {name}"
        self.denials = Denials(who, credentials.inbox_prefix if credentials else "_INBOX")
        self.client = RefusableClient(self.denials, needs_tls=settings.tls is not None or url.startswith("tls://"))
        self.back = asyncio.Event()
        self.losses = 0
        self.when_lost: set[Callable[[], None]] = set()
        self._dead: str | None = None
        self._closing = False
        self._refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def jetstream(self) -> JetStreamContext:
        return self._jetstream

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected and self._dead is None

    @property
    def largest_payload(self) -> int:
        """What one message may hold, with room for its headers."""
        server: int = self.client.max_payload
        return min(server, self.settings.max_payload_bytes) - HEADER_ROOM_BYTES

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            BusUnavailable: nobody answers within `connect_timeout_s`.
            BusRefused: the server does not accept the credentials, or is not trusted; or the files of TLS are no use.
        """
        connecting = asyncio.ensure_future(self._connect(self._options()))
        try:
            await asyncio.wait(
                (connecting, self._refused),
                timeout=self.settings.connect_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._refused.done():
                raise BusRefused(f"the bus at {without_password(self.url)} refuses: {self._refused.result()}")
            if not connecting.done():
                raise self._absent()
            connecting.result()
        except (OSError, nats.errors.Error) as error:
            raise self._absent() from error
        finally:
            await self._abandon(connecting)
        self._jetstream = self.client.jetstream(timeout=self.settings.request_timeout_s)

    async def close(self) -> None:
        self._closing = True
        self._dead = self._dead or "the bus was closed"
        closing = asyncio.ensure_future(self.client.close())
        await asyncio.wait((closing,), timeout=_CLOSE_TIMEOUT_S)
        closing.cancel()
        (failed,) = await asyncio.gather(closing, return_exceptions=True)
        if failed is not None:  # as cancelled, too, though nobody did that: where the connection was just breaking
            log.warning("bus_close_failed", url=without_password(self.url), reason=repr(failed))

    def check(self) -> None:
        """Raises `BusUnavailable` when the connection is closed for good."""
        if self._dead is not None:
            raise BusUnavailable(self._dead)

    async def until_connected(self, timeout_s: float) -> bool:
        """Whether the connection stands, after waiting up to `timeout_s` for it."""
        self.check()
        try:
            await asyncio.wait_for(self.back.wait(), timeout_s)
        except TimeoutError:
            pass
        self.check()
        return self.client.is_connected

    async def _connect(self, options: dict[str, Any]) -> None:
        await self.client.connect(self.url.split(","), **options)
        self.back.set()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "name": self.name,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_lost,
            "reconnected_cb": self._on_back,
            "closed_cb": self._on_closed,
            "connect_timeout": 2,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "ping_interval": 5,
            "max_outstanding_pings": 2,
            "pending_size": 16 * MIB,
            "flush_timeout": self.settings.request_timeout_s,  # without one, a full buffer waits on a lost flusher
        }
        credentials, tls = self.settings.credentials, self.settings.tls
        if credentials is not None:
            options |= {"nkeys_seed_str": credentials.seed, "inbox_prefix": credentials.inbox_prefix}
        if tls is not None:
            options["tls"] = tls.client_context()
        return options

    async def _abandon(self, connecting: "asyncio.Future[None]") -> None:
        if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
            return
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await self.close()

    def _absent(self) -> BusUnavailable:
        return BusUnavailable(f"no bus at {without_password(self.url)}: start one with 'trinity bus', or set bus.url")

    async def _on_error(self, error: Exception) -> None:
        """Whatever escapes from here would end the client's read loop, so nothing does."""
        try:
            self._note(error)
        except Exception:  # noqa: BLE001 - see above
            pass

    def _note(self, error: Exception) -> None:
        text = str(error)
        refusal = _refusal(error, text)
        if refusal is not None and not self._refused.done():
            self._refused.set_result(refusal)
        denial = self.denials.note(text)
        if denial is not None:
            log.error("bus_denied", reason=denial)
        elif self.back.is_set():
            log.warning("bus_error", reason=text or type(error).__name__)

    async def _on_lost(self) -> None:
        was_up = self.back.is_set()
        self.losses += 1
        self.back.clear()
        for give_up in list(self.when_lost):  # what was asked before will not be answered
            give_up()
        if was_up and not self._closing:
            log.warning("bus_lost", url=without_password(self.url))

    async def _on_back(self) -> None:
        self.back.set()
        log.info("bus_back", url=without_password(self.url))

    async def _on_closed(self) -> None:
        if self._closing:
            return
        reason = str(self.client.last_error or "the server ended the connection")
        self._dead = f"the connection to {without_password(self.url)} is closed for good: {reason}"
        self.back.set()
        log.error("bus_closed", url=without_password(self.url), reason=reason)


def _refusal(error: Exception, text: str) -> str | None:
    """What a failed attempt to connect says of a lasting reason; None where it may pass."""
    if "authorization violation" in text.lower():
        return f"{text}: it does not know these credentials (bus.credentials, or the user and password in bus.url)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): set bus.tls_ca to the authority that signed it"
        )
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({text}): set bus.tls_cert and bus.tls_key to a certificate that the bus accepts"
    return text if NO_TLS in text else None
