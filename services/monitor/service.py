"""The monitor service: reads the metrics stream from its beginning, so that its record is whole whenever it starts, and
writes the experience stream to the stores that the configuration names, each experience once."""

import asyncio
from pathlib import Path

import structlog

from bus.subjects import Stream
from schemas.reports import MetricsReported
from services.monitor.gathering import Gathering
from services.monitor.storing import Stored
from services.monitor.tensorboard import TensorBoardRecord
from services.runtime.context import Context
from services.store.build import store_at
from services.store.sinks import sinks

log = structlog.get_logger()

_FLUSH_S = 2.0


class Monitor:
    """Owns the writers. It says nothing on the bus but its heartbeat, and how far the stores are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._gathering = Gathering()
        cache = context.config.monitor.cache_dir or str(context.config.run_dir / "monitor")
        self._record_dir = f"{cache}/tensorboard"
        self._read = 0
        places = sinks(context.config)
        self._stored = Stored(context, [store_at(place) for place in places]) if places else None

    async def run(self) -> None:
        """Write until the run is finished and everything in the streams is written.

        Raises:
            StoreError: a store holds something else.
        """
        record = TensorBoardRecord(Path(self._record_dir))
        log.info("monitor_writing", directory=self._record_dir)
        self._context.member.state = "writing"
        working = [asyncio.create_task(self._follow(record))]
        if self._stored is not None:
            working.append(asyncio.create_task(self._stored.run()))
        try:
            while not self._context.stopping.is_set() and not await self._is_complete():
                for task in working:
                    if task.done():
                        task.result()
                record.flush()
                await self._context.wait(_FLUSH_S)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if self._stored is not None:
                await self._stored.close()
            record.write(self._gathering.flush())
            record.close()

    async def _follow(self, record: TensorBoardRecord) -> None:
        async for delivery in self._context.bus.read(Stream.METRICS):
            if isinstance(delivery.message, MetricsReported):
                record.write(self._gathering.add(delivery.message))
            self._read = delivery.sequence

    async def _is_complete(self) -> bool:
        if await self._context.phase() != "finished":
            return False
        if self._stored is not None and not await self._stored.is_abreast():
            return False
        return self._read >= (await self._context.bus.state(Stream.METRICS)).last
