"""A service's membership of the run: a heartbeat that vanishes by itself when the process dies."""

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass, field

import structlog

from bus.errors import BusError
from bus.port import Bus
from schemas.reports import ServiceName
from schemas.state import MemberSeen
from schemas.weights import WeightVersion
from services.runtime.keys import member_key

log = structlog.get_logger()


@dataclass
class Member:
    """What this process says of itself. Its fields may be set at any time; the next heartbeat carries them."""

    service: ServiceName
    name: str
    state: str = "starting"
    weights: WeightVersion = field(default_factory=WeightVersion)
    tasks_in_hand: int = 0
    versions_needed: tuple[int, ...] = ()
    detail: dict[str, float] = field(default_factory=dict)
    started_at: float = field(default_factory=time.time)

    def seen(self) -> MemberSeen:
        return MemberSeen(
            service=self.service,
            member=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self.started_at,
            seen_at=time.time(),
            state=self.state,
            weights=self.weights,
            tasks_in_hand=self.tasks_in_hand,
            versions_needed=self.versions_needed,
            detail=dict(self.detail),
        )


async def beat(bus: Bus, member: Member, interval_s: float, timeout_s: float) -> None:
    """Renew the member's key until cancelled. A heartbeat that fails is repeated, never fatal."""
    key = member_key(member.service, member.name)
    try:
        while True:
            try:
                await bus.put(key, member.seen(), ttl_s=timeout_s)
            except BusError as error:
                log.warning("heartbeat_missed", member=member.name, error=str(error))
            await asyncio.sleep(interval_s)
    finally:
        with contextlib.suppress(BusError, asyncio.TimeoutError):
            await asyncio.wait_for(bus.delete(key), timeout=2.0)
