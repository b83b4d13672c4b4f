"""What was asked when the server died is asked again as soon as it is back, and not only when its time is up."""

import asyncio
import os
import signal
import time

from bus.port import LeaseTerms
from bus.settings import BusSettings
from schemas.state import LeaseHeld

PATIENT = BusSettings(request_timeout_s=60.0, terms=LeaseTerms(lease_s=120.0))
SOON_S = 10.0


async def test_requests_in_flight_outlive_the_server_by_no_more_than_it_is_away(server, join, said, kill) -> None:
    bus = await join(PATIENT)
    await bus.declare()
    await bus.publish(said.task(0))
    queue = await bus.queue()
    (held,) = await queue.pull(1, 1.0)
    os.kill(server.pid, signal.SIGSTOP)
    asked = [
        asyncio.ensure_future(doing)
        for doing in (bus.publish(said.group(0)), bus.put("key", said.held()), held.ack(), bus.entries("key"))
    ]
    pulling = asyncio.ensure_future(queue.pull(1, 1.0))
    await asyncio.sleep(0.3)  # until all of it is on its way
    assert not any(each.done() for each in (*asked, pulling))
    await kill(server)
    await server.start()
    began = time.monotonic()
    stored, *_ = await asyncio.wait_for(asyncio.gather(*asked), SOON_S)
    pulled = await asyncio.wait_for(pulling, SOON_S)
    assert time.monotonic() - began < SOON_S
    assert stored.sequence == 1
    assert {delivery.sequence for delivery in pulled} <= {held.sequence}  # a dead server forgets whom it gave a task
    found = await asyncio.wait_for(bus.get("key"), SOON_S)
    assert found is not None
    assert isinstance(found.message, LeaseHeld)
