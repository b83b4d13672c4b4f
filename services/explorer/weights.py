"""How an explorer adopts announced weights: the newest complete version, while its requests are in flight."""

import asyncio
import time

import structlog

from schemas.weights import WeightsAnnounced, WeightVersion
from services.inference.announcements import Newest
from services.inference.engine import Engine
from services.inference.weights import WeightsUnusable, verified
from services.runtime.context import Context

log = structlog.get_logger()

_PATIENCE_LOG_S = 30.0


class Adoption:
    """Loads each newest version into the engine, and lets tasks wait for the version that they need."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._newest = Newest(context.bus)
        self._adopted = asyncio.Condition()

    async def run(self) -> None:
        """Follow announcements until cancelled."""
        following = asyncio.create_task(self._newest.follow())
        try:
            while True:
                arriving = asyncio.create_task(self._newest.next())
                await asyncio.wait([arriving, following], return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                await self._adopt(await arriving)
        finally:
            following.cancel()

    async def satisfied(self, floor: WeightVersion) -> None:
        """Returns once the engine's weights satisfy `floor`."""
        waited_s = 0.0
        while not self._satisfies(floor):
            async with self._adopted:
                try:
                    await asyncio.wait_for(self._adopted.wait(), timeout=_PATIENCE_LOG_S)
                except TimeoutError:
                    waited_s += _PATIENCE_LOG_S
                    log.warning("waiting_for_weights", needed=floor.version, waited_s=waited_s)

    def _satisfies(self, floor: WeightVersion) -> bool:
        weights = self._engine.weights
        return weights is not None and weights.satisfies(floor)

    async def _adopt(self, announced: WeightsAnnounced) -> None:
        current = self._engine.weights
        if current is not None and not announced.weights.supersedes(current):
            return
        started = time.monotonic()
        try:
            with self._context.activities.doing("syncing"):
                directory = await asyncio.to_thread(verified, announced)
                await self._engine.load(str(directory), announced.weights)
        except WeightsUnusable as error:
            log.warning("weights_not_adopted", version=announced.weights.version, error=str(error))
            return
        self._context.member.weights = announced.weights
        async with self._adopted:
            self._adopted.notify_all()
        await self._report(announced, time.monotonic() - started)

    async def _report(self, announced: WeightsAnnounced, seconds: float) -> None:
        version = announced.weights.version
        await self._context.report(
            version,
            {
                "explorer/time/sync_weight": seconds,
                "explorer/time/step_end_to_adoption": time.time() - announced.step_ended_at,
                "explorer/model_version": float(version),
            },
        )
        log.info("weights_adopted", version=version, incarnation=announced.weights.incarnation, seconds=seconds)
