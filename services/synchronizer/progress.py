"""How far the run is released, as one leader keeps it: every change is a compare-and-set, so that a leader that was
superseded learns it before it releases anything more."""

import time

from bus.errors import RevisionConflict
from bus.port import Bus, Lease
from schemas.state import ReleaseProgress
from services.runtime.keys import LEADER, RELEASE


class Superseded(Exception):
    """Another synchronizer leads; this one must not release anything more."""


class Progress:
    """The release progress under one lease."""

    def __init__(self, bus: Bus, lease: Lease) -> None:
        self._bus = bus
        self._lease = lease
        self._revision = 0
        self.now = ReleaseProgress(term=lease.term, phase="releasing", released=0, batches=0)

    async def take_over(self) -> None:
        """Go on from what the predecessor has recorded, under our own term."""
        held = await self._bus.get(RELEASE)
        if held:
            self._revision = held.revision  # also of a message that has no place there: it is written over
        if held and isinstance(held.message, ReleaseProgress):
            self.now = held.message
        await self.save(term=self._lease.term)

    async def save(self, **changes: object) -> None:
        """Record a change.

        Raises:
            Superseded: another leader has recorded something since, or our lease is over.
        """
        await self.assert_leading()
        changed = self.now.model_copy(update={**changes, "updated_at": time.time()})
        try:
            self._revision = await self._bus.swap(RELEASE, changed, self._revision)
        except RevisionConflict:
            raise await self._superseded() from None
        self.now = changed

    async def assert_leading(self) -> None:
        """Raises `Superseded` when the lease is over."""
        if not self._lease.is_held:
            raise await self._superseded()

    async def _superseded(self) -> Superseded:
        holder = await self._bus.lease_holder(LEADER)
        leads = f"{holder.holder} leads with term {holder.term}" if holder else "nobody leads yet"
        return Superseded(
            f"the lease of this synchronizer, of term {self._lease.term}, is over; {leads}. Nothing more is released "
            "here: started again, it stands by"
        )
