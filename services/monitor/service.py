"""The monitor service: reads the metrics stream from its beginning, so that its record is whole whenever it starts, and
writes the experience stream to the stores that the configuration names, each experience once."""

import asyncio

import structlog

from bus.subjects import Stream
from schemas.state import RunDeclared
from services.monitor.build import RECORDS
from services.monitor.experiment import experiment
from services.monitor.recording import Recording
from services.monitor.storing import Stored
from services.runtime.context import Context
from services.runtime.keys import DECLARED
from services.store.build import store_at
from services.store.sinks import sinks

log = structlog.get_logger()

_LOOK_S = 1.0
_FAREWELL_S = 60.0
"""For so long a finished run waits for a record that cannot be written."""


class Monitor:
    """Owns the record and the stores. It says nothing on the bus but its heartbeat, and how far the stores are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        places = sinks(context.config)
        self._stored = Stored(context, [store_at(place) for place in places]) if places else None

    async def run(self) -> None:
        """Write until the run is finished and everything in the streams is written.

        Raises:
            StoreError: a store holds something else.
        """
        recording = await self._recording()
        self._context.member.state = "writing"
        working = [asyncio.create_task(recording.run())]
        if self._stored is not None:
            working.append(asyncio.create_task(self._stored.run()))
        is_over = False
        try:
            while not self._context.stopping.is_set() and not is_over:
                for task in working:
                    if task.done():
                        task.result()
                self._tell(recording)
                await self._context.wait(_LOOK_S)
                is_over = await self._is_complete(recording)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if self._stored is not None:
                await self._stored.close()
            await recording.end(is_over=is_over)

    async def _recording(self) -> Recording:
        config, found = self._context.config, await self._context.bus.get(DECLARED)
        declared = found.message if found and isinstance(found.message, RunDeclared) else None
        record = RECORDS[config.monitor.monitor_type](config, experiment(config, declared))
        return Recording(self._context.bus, record)

    def _tell(self, recording: Recording) -> None:
        """Show in the heartbeat what is waited for."""
        named = f"waiting for {self._context.config.monitor.monitor_type}: "
        if recording.waits_for:
            self._context.member.state = f"{named}{recording.waits_for}"
        elif self._context.member.state.startswith(named):
            self._context.member.state = "writing"

    async def _is_complete(self, recording: Recording) -> bool:
        if await self._context.phase() != "finished":
            return False
        if self._stored is not None and not await self._stored.is_abreast():
            return False
        if recording.position >= (await self._context.bus.state(Stream.METRICS)).last:
            return True
        return self._is_given_up(recording)

    def _is_given_up(self, recording: Recording) -> bool:
        if recording.waited_s() < _FAREWELL_S:
            return False
        log.warning(
            "record_left_behind",
            record=self._context.config.monitor.monitor_type,
            reason=recording.waits_for or f"it has taken nothing for {_FAREWELL_S:g} s",
            instead="the stream has it all: the same command again goes on from there",
        )
        return True
