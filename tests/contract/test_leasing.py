"""A lease has one holder at a time, and every holder a higher term than the one before."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from bus.errors import LeaseLost

HOLDER = textwrap.dedent(
    """
    import asyncio, sys, structlog
    from bus.jetstream import connect
    from bus.settings import BusSettings

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    async def main() -> None:
        bus = await connect(sys.argv[1], "project/name", name="holder", settings=BusSettings(request_timeout_s=1.0))
        lease = await bus.lease("leader", "stopped", ttl_s=1)
        print("held", lease.term, flush=True)
        await lease.lost()
        print("lost", lease.is_held, flush=True)

    asyncio.run(main())
    """
)


async def test_a_lease_has_one_holder(bus, join):
    lease = await bus.lease("leader", "a", ttl_s=5)
    assert lease.is_held
    other = await join()
    with pytest.raises(LeaseLost, match="held by a"):
        await other.lease("leader", "b", ttl_s=5, wait=False)
    held = await other.lease_holder("leader")
    assert (held.holder, held.term) == ("a", lease.term)
    assert (await other.lease("another", "b", ttl_s=5, wait=False)).is_held


async def test_of_many_who_ask_at_once_one_holds(bus, join):
    members = [await join() for _ in range(4)]
    asking = [member.lease("leader", str(number), 5, wait=False) for number, member in enumerate(members)]
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert len([each for each in outcomes if not isinstance(each, LeaseLost)]) == 1


async def test_a_released_lease_is_free_at_once_and_its_term_grows(bus, join):
    terms = []
    other = await join()
    for member in (bus, other, bus):
        lease = await member.lease("leader", "m", ttl_s=5, wait=False)
        terms.append(lease.term)
        await lease.release()
        assert not lease.is_held
        async with asyncio.timeout(1.0):
            await lease.lost()
    assert terms == sorted(set(terms))
    assert await bus.lease_holder("leader") is None


async def test_a_lease_lives_while_it_is_renewed(bus, join):
    lease = await bus.lease("leader", "a", ttl_s=1)
    other = await join()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await other.lease("leader", "b", ttl_s=1)
    assert lease.is_held


async def test_a_lease_whose_holder_died_is_taken_over_under_a_higher_term(bus, join):
    holder = await join()
    lease = await holder.lease("leader", "a", ttl_s=1)
    await holder._connection.client.close()
    taken = await asyncio.wait_for(bus.lease("leader", "b", ttl_s=1), 10.0)
    assert taken.term > lease.term
    async with asyncio.timeout(2.0):
        await lease.lost()
    assert not lease.is_held


async def test_a_lease_is_lost_when_another_value_stands_at_its_key(bus, said):
    lease = await bus.lease("leader", "a", ttl_s=1)
    await bus.put("lease.leader", said.held("usurper", 99), ttl_s=10)
    async with asyncio.timeout(3.0):
        await lease.lost()
    assert not lease.is_held


async def test_a_lease_is_lost_when_its_key_is_deleted(bus):
    lease = await bus.lease("leader", "a", ttl_s=1)
    await bus.delete("lease.leader")
    async with asyncio.timeout(3.0):
        await lease.lost()


async def test_a_lease_is_lost_in_time_when_the_server_goes_away(bus, server, kill):
    lease = await bus.lease("leader", "a", ttl_s=1)
    loop = asyncio.get_running_loop()
    await kill(server)
    gone_at = loop.time()
    async with asyncio.timeout(5.0):
        await lease.lost()
    assert loop.time() - gone_at < 1.5


async def test_the_term_grows_across_expiry_and_restart(bus, join, server, kill, eventually):
    first = await bus.lease("leader", "a", ttl_s=1)
    await kill(server)
    await first.lost()
    await server.start()
    second = await asyncio.wait_for(bus.lease("leader", "b", ttl_s=1), 10.0)
    assert second.term > first.term


async def test_a_stopped_process_sees_its_lease_lost_on_waking(bus, server):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, server.url], stdout=subprocess.PIPE, text=True)
    try:
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20.0)
        assert line.split()[0] == "held"
        os.kill(process.pid, signal.SIGSTOP)
        taken = await asyncio.wait_for(bus.lease("leader", "b", ttl_s=5), 10.0)
        assert taken.term > int(line.split()[1])
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 10.0) == "lost False\n"
        assert (await bus.lease_holder("leader")).holder == "b"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_closing_the_bus_releases_its_leases(bus, join):
    holder = await join()
    await holder.lease("leader", "a", ttl_s=60)
    await holder.close()
    assert (await bus.lease("leader", "b", ttl_s=5, wait=False)).is_held
