"""Weights as the trainer gives them out: written whole, announced under the fence of its incarnation, pruned."""

import asyncio
import time

import structlog

from schemas.state import MemberSeen
from schemas.weights import WeightsAnnounced, WeightVersion
from services.config.tree import RunConfig
from services.runtime.context import Context
from services.runtime.keys import MEMBERS
from services.trainer.backends.port import Backend
from services.trainer.incarnation import Incarnation
from services.trainer.weights import WeightsDirectory

log = structlog.get_logger()

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


class Announcer:
    """Writes and announces the weights of one incarnation."""

    def __init__(self, context: Context, backend: Backend, incarnation: Incarnation) -> None:
        config = context.config
        self._context = context
        self._backend = backend
        self._incarnation = incarnation
        self._dtype = weights_dtype(config)
        self._directory = WeightsDirectory(context.bus.run, config.run_dir, config.synchronizer.keep_versions)
        self._announced: WeightsAnnounced | None = None

    @property
    def weights(self) -> WeightVersion:
        """The version announced last."""
        return self._announced.weights if self._announced else WeightVersion(incarnation=self._incarnation.number)

    async def announce(self, step: int, step_ended_at: float, is_final: bool = False) -> float:
        """Write the weights of the present step and announce them. Returns the seconds that it took.

        Raises:
            Superseded: another trainer has begun.
        """
        started = time.monotonic()
        await self._incarnation.assert_current()
        version = WeightVersion(incarnation=self._incarnation.number, version=step)
        with self._context.activities.doing("syncing"):
            if self._announced is None or self._announced.weights != version:
                self._announced = await asyncio.to_thread(
                    self._directory.write,
                    version,
                    lambda directory: self._backend.write_weights(directory, self._dtype),
                    self._dtype,
                    step_ended_at,
                )
            self._announced = self._announced.model_copy(update={"is_final": is_final})
            await self._incarnation.publish(self._announced)
        self._context.member.weights = version
        seconds = time.monotonic() - started
        log.info("weights_announced", version=version.version, incarnation=version.incarnation, seconds=seconds)
        return seconds

    async def prune(self) -> None:
        """Remove versions that nobody holds or needs, by `synchronizer.keep_versions`."""
        members = [entry.message for entry in await self._context.bus.entries(MEMBERS)]
        needed = [v for member in members if isinstance(member, MemberSeen) for v in member.versions_needed]
        in_use = [member.weights.version for member in members if isinstance(member, MemberSeen)]
        await asyncio.to_thread(self._directory.prune, self.weights, [*needed, *in_use])


def weights_dtype(config: RunConfig) -> str:
    """The precision of written weights: as set, else that of the engines that load them."""
    chosen = config.trainer.weights_dtype
    return DTYPES[chosen] if chosen else config.explorer.rollout_model.dtype
