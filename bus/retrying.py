"""Which failures of the server pass, and how they are waited out: with growing jittered pauses and a log line."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

import nats.errors
import nats.js.errors
import structlog

from bus.connection import Connection
from bus.errors import BusError, BusRefused, BusUnavailable, PublishTimeout, RevisionConflict, StreamFull

log = structlog.get_logger()

T = TypeVar("T")

STREAM_FULL = 10077
STORE_FULL = 10023
STREAM_MISSING = 10059
_FULL = {STREAM_FULL, STORE_FULL}
_CONFLICT = {10071, 10164}
_LOG_EVERY_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Failure(StrEnum):
    """What a failed request means for the next attempt."""

    AWAY = "away"
    FULL = "full"
    CONFLICT = "conflict"
    REFUSED = "refused"
    CLOSED = "closed"


def failure(error: Exception) -> Failure:
    """Errors are told apart by code: a full stream and an absent JetStream share a class."""
    if isinstance(error, nats.js.errors.APIError):
        if error.err_code in _FULL:
            return Failure.FULL
        if error.err_code in _CONFLICT:
            return Failure.CONFLICT
        return Failure.AWAY if error.code in (None, 429, 500, 503) else Failure.REFUSED
    if isinstance(error, (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError)):
        return Failure.CLOSED
    away = (
        TimeoutError,
        nats.js.errors.NoStreamResponseError,
        nats.errors.NoRespondersError,
        nats.errors.OutboundBufferLimitError,
        nats.errors.ConnectionReconnectingError,
        nats.errors.StaleConnectionError,
        OSError,
    )
    return Failure.AWAY if isinstance(error, away) else Failure.REFUSED


def ours(error: Exception, what: str) -> BusError:
    """The error of this package for a foreign one that will not pass."""
    kinds: dict[Failure, type[BusError]] = {
        Failure.AWAY: BusUnavailable,
        Failure.FULL: StreamFull,
        Failure.CONFLICT: RevisionConflict,
        Failure.REFUSED: BusRefused,
        Failure.CLOSED: BusUnavailable,
    }
    return kinds[failure(error)](f"{what}: {error}")


class Patience:
    """Repeats a request until the server has answered it, however long that takes or until a deadline.

    Each attempt has its own limit and its own task: the client swallows a cancellation that meets it while it flushes.
    """

    def __init__(
        self, connection: Connection, what: str, deadline_s: float | None = None, event: str = "bus_waiting"
    ) -> None:
        self._connection = connection
        self._what = what
        self._event = event
        self._started = time.monotonic()
        self._deadline = None if deadline_s is None else self._started + deadline_s
        self._logged: float | None = None
        self.attempts = 0

    async def until_answered(
        self,
        request: Callable[[], Awaitable[T]],
        advice: Callable[[Failure], Awaitable[str]] | None = None,
        limits_itself: bool = False,
    ) -> T:
        """The answer to `request`. A `RevisionConflict` is an answer too.

        One that `limits_itself` ends in time and is never deaf to a cancellation: it needs no task of its own.

        Raises:
            StreamFull, PublishTimeout: the deadline passed, by what stood in the way last.
            BusRefused, RevisionConflict, BusUnavailable: an answer that will not change; a denial is one.
        """
        while True:
            self._connection.check()
            try:
                if not self._connection.client.is_connected:
                    raise nats.errors.ConnectionReconnectingError
                self.attempts += 1
                if limits_itself:
                    return await request()
                limit_s = 2 * self._connection.settings.request_timeout_s + 1.0
                return await self._answer(asyncio.ensure_future(request()), limit_s)
            except (nats.errors.Error, OSError) as error:
                self._connection.check()
                kind = failure(error)
                if kind not in (Failure.AWAY, Failure.FULL):
                    raise ours(error, self._what) from error
                await self._wait(kind, error, advice)

    async def _answer(self, asking: "asyncio.Future[T]", limit_s: float) -> T:
        """What is answered in time, and before the connection breaks: after that no answer comes."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            if not lost.done():
                lost.set_result(None)

        self._connection.when_lost.add(give_up)
        try:
            await asyncio.wait((asking, lost), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise TimeoutError
        finally:
            self._connection.when_lost.discard(give_up)
            lost.cancel()
            asking.cancel()  # not waited for: one that meets the client's flush is swallowed, and ends by its own limit
            asking.add_done_callback(_overheard)

    async def _wait(self, kind: Failure, error: Exception, advice: Callable[[Failure], Awaitable[str]] | None) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise self._given_up(kind, error) from error
        if now - (self._logged or self._started) >= _LOG_EVERY_S or (self._logged is None and kind is Failure.FULL):
            self._logged = now
            todo = await advice(kind) if advice else "waiting for the server"
            waited_s = round(now - self._started, 1)
            log.warning(self._event, what=self._what, reason=_words(error), todo=todo, waited_s=waited_s)
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self.attempts, 6)) * random.uniform(0.5, 1.0)
        if self._deadline is not None:
            pause_s = min(pause_s, max(0.0, self._deadline - now))
        if self._connection.client.is_connected:
            await asyncio.sleep(pause_s)
        else:
            await self._connection.until_connected(max(pause_s, 0.01))

    def _given_up(self, kind: Failure, error: Exception) -> BusError:
        waited = f"{self._what}: {_words(error)} after {time.monotonic() - self._started:.1f} s"
        return StreamFull(waited) if kind is Failure.FULL else PublishTimeout(waited)


def _overheard(asking: "asyncio.Future[T]") -> None:
    """What became of a request that nobody waits for any more."""
    if not asking.cancelled():
        asking.exception()


def _words(error: Exception) -> str:
    return getattr(error, "description", None) or str(error) or type(error).__name__
