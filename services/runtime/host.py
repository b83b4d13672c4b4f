"""The life of one service process: logs, signals, bus and heartbeat around the service itself."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import structlog

from bus.errors import BusError
from bus.permissions import Role
from bus.port import Bus
from schemas.reports import ServiceName
from services.config.tree import RunConfig
from services.runtime.bus_access import join
from services.runtime.context import Context, Superseded, Uncorrected
from services.runtime.member import Member, beat

log = structlog.get_logger()

Run = Callable[[Context], Awaitable[None]]

EXIT_FAILED = 1
EXIT_UNCORRECTED = 5
"""What the user has given has to be corrected first: starting the service again would lead to the same."""

EXIT_SUPERSEDED = 4
"""Another process has taken this one's part of the run: starting it again would only take it back."""

_LONGEST_FAREWELL_S = 120.0
"""A service that waits for a bus that is gone for good must not outlive its launcher. What it holds is redelivered."""


def member_name(service: ServiceName, name: str | None = None) -> str:
    """A name that no other member of the run has, unless one was given."""
    return name or f"{service}-{socket.gethostname()}-{os.getpid()}"


async def host(config: RunConfig, service: ServiceName, name: str, run: Run) -> int:
    """Run one service until it ends by itself or is told to (SIGTERM, SIGINT). Returns the process's exit status."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        loop.call_later(config.explorer.leave_timeout + _LONGEST_FAREWELL_S, os._exit, EXIT_FAILED)

    def hear_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

    hear_signals()
    bus = await join(config, name, Role(service))
    member = Member(service, name)
    synchronizer = config.synchronizer
    beating = asyncio.create_task(beat(bus, member, synchronizer.heartbeat_interval, synchronizer.member_timeout))
    log.info("service_started", member=name, run=config.run_name, bus=bus.url, pid=os.getpid())
    try:
        await run(Context(config, bus, member, stopping, hear_signals=hear_signals))
    except Superseded as error:
        log.error("service_superseded", member=name, reason=str(error))
        return EXIT_SUPERSEDED
    except Uncorrected as error:
        log.error("service_needs_correction", member=name, reason=str(error), exc_info=True)
        return EXIT_UNCORRECTED
    except Exception as error:
        log.error("service_failed", member=name, error=f"{type(error).__name__}: {error}", exc_info=True)
        return EXIT_FAILED
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await _close(bus)
    log.info("service_ended", member=name)
    return 0


async def _close(bus: Bus) -> None:
    try:
        await bus.close()
    except BusError as error:
        log.warning("bus_not_closed", error=str(error))
