"""Leases with fencing terms: at most one holder believes that it holds, and every holder has a higher term than before.

The lease is a key that expires; the term is a second key that never does, swapped before each taking. A holder counts
its own time from before it asked, so it stops believing no later than the server lets another in, even when the
process was stopped meanwhile.
"""

import asyncio
import time

import structlog

from bus.errors import BusError, BusUnavailable, LeaseLost, RevisionConflict
from bus.keyvalue import KeyValue
from schemas.state import LeaseHeld

log = structlog.get_logger()

_LONGEST_LOOK_S = 0.5
_RELEASE_TIMEOUT_S = 2.0


class KeyLease:
    """A lease in hand, renewed in the background until it is released or lost."""

    def __init__(
        self, store: KeyValue, name: str, held: LeaseHeld, revision: int, asked_at: float, ttl_s: float
    ) -> None:
        self._store = store
        self._name = name
        self._held = held
        self._revision = revision
        self._ttl_s = ttl_s
        self._until = asked_at + ttl_s
        self._lost = asyncio.Event()
        self._renewing = asyncio.ensure_future(self._renew_for_ever())

    @property
    def term(self) -> int:
        return self._held.term

    @property
    def is_held(self) -> bool:
        return not self._lost.is_set() and time.monotonic() < self._until

    async def lost(self) -> None:
        await self._lost.wait()

    async def release(self) -> None:
        """Let the next holder in at once."""
        was_held = self.is_held
        self._lost.set()  # ends the renewing even where its cancellation meets the answer and is swallowed
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if not was_held:
            return
        try:
            await asyncio.wait_for(
                self._store.delete(lease_key(self._name), self._revision), min(self._ttl_s, _RELEASE_TIMEOUT_S)
            )
        except (TimeoutError, BusError):
            pass  # it expires by itself

    async def _renew_for_ever(self) -> None:
        while self.is_held:
            await asyncio.sleep(min(self._ttl_s / 3, max(0.0, self._until - time.monotonic())))
            if not self.is_held:
                break
            try:
                await self._renew()
            except (LeaseLost, RevisionConflict, BusUnavailable):
                break
            except BusError as error:
                log.warning("lease_not_renewed", name=self._name, reason=str(error))
        log.warning("lease_lost", name=self._name, term=self.term)
        self._lost.set()

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        renewed = self._held.model_copy(update={"renewed_at": time.time()})
        left_s = max(0.05, self._until - asked_at)
        try:
            swapping = self._store.swap(lease_key(self._name), renewed, self._revision, self._ttl_s, left_s)
            revision = await asyncio.wait_for(swapping, left_s)
        except TimeoutError:
            return
        except RevisionConflict:
            revision = await self._own_revision()
        self._revision, self._until = revision, asked_at + self._ttl_s

    async def _own_revision(self) -> int:
        """The revision of an earlier renewal of ours whose acknowledgement was lost."""
        current = await self._store.get(lease_key(self._name))
        if current is None or not isinstance(current.message, LeaseHeld):
            raise LeaseLost(f"lease {self._name} expired")
        mine = (self._held.holder, self._held.term)
        if (current.message.holder, current.message.term) != mine:
            raise LeaseLost(f"lease {self._name} is held by {current.message.holder}")
        return current.revision


def lease_key(name: str) -> str:
    return f"lease.{name}"


def term_key(name: str) -> str:
    return f"term.{name}"


async def take(store: KeyValue, name: str, holder: str, ttl_s: float, wait: bool) -> KeyLease:
    """Take the lease `name`, waiting for it when `wait`.

    Raises:
        LeaseLost: it is held by another and `wait` is False.
    """
    while True:
        current = await lease_holder(store, name)
        if current is None:
            lease = await _try(store, name, holder, ttl_s)
            if lease is not None:
                return lease
        if not wait:
            raise LeaseLost(f"lease {name} is held by {current.holder if current else 'another'}")
        await asyncio.sleep(min(_LONGEST_LOOK_S, ttl_s / 4))


async def lease_holder(store: KeyValue, name: str) -> LeaseHeld | None:
    found = await store.get(lease_key(name))
    return found.message if found is not None and isinstance(found.message, LeaseHeld) else None


async def _try(store: KeyValue, name: str, holder: str, ttl_s: float) -> KeyLease | None:
    """A new term, then the lease under it; None when somebody was quicker. What is no lease is written over: it would
    never expire."""
    try:
        stands = await store.get(lease_key(name))
        if stands is not None and isinstance(stands.message, LeaseHeld):
            return None
        held = await _next_term(store, name, holder)
        asked_at = time.monotonic()
        revision = await store.swap(lease_key(name), held, stands.revision if stands else 0, ttl_s)
    except RevisionConflict:
        return None
    log.info("lease_taken", name=name, holder=holder, term=held.term)
    return KeyLease(store, name, held, revision, asked_at, ttl_s)


async def _next_term(store: KeyValue, name: str, holder: str) -> LeaseHeld:
    current = await store.get(term_key(name))
    last = current.message.term if current and isinstance(current.message, LeaseHeld) else 0
    held = LeaseHeld(holder=holder, term=last + 1, renewed_at=time.time())
    await store.swap(term_key(name), held, current.revision if current else 0)
    return held
