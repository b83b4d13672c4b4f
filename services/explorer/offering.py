"""An explorer brings its own tasksets: those that the run lacks are offered to the synchronizer."""

import time
from collections.abc import Iterable

import structlog

from bus.errors import RevisionConflict
from bus.port import Bus
from schemas.state import ReleaseProgress, TasksetOffered
from services.rollout.config import TasksetConfig
from services.rollout.offering import differences, located
from services.runtime.context import Context
from services.runtime.keys import offer_key

log = structlog.get_logger()

_LOOK_S = 1.0
_SAY_AGAIN_S = 30.0


def tasksets_of(progress: ReleaseProgress | None) -> set[str]:
    """The names of the tasksets that the run releases tasks of."""
    return {share.name for segment in (progress.segments if progress else ()) for share in segment.tasksets}


class Offering:
    """Offers what the run lacks, and tells what the run does not have of what this explorer is to serve."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bus: Bus = context.bus
        self._served = context.config.explorer.tasksets
        self._waiting = {config.name: located(config) for config in context.config.tasksets}
        self._offered: set[str] = set()
        self._said_at = float("-inf")

    async def run(self) -> None:
        """Until all own tasksets are in the run or refused, and all that are to be served are there."""
        while True:
            progress = await self._context.release()
            known = tasksets_of(progress)
            if known:
                for name in list(self._waiting):
                    await self._settle(name, name in known)
                missing = [name for name in self._served if name not in known]
                if not missing and not self._waiting:
                    return
                self._say(missing, known)
            await self._context.wait(_LOOK_S)

    async def _settle(self, name: str, is_known: bool) -> None:
        own = self._waiting[name]
        held = await self._bus.get(offer_key(name))
        offer = held.message if held and isinstance(held.message, TasksetOffered) else None
        if offer is not None and (found := _difference(offer, own)):
            log.warning("taskset_refused", taskset=name, difference=found, doing=_OTHER_NAME)
        elif is_known:
            if name in self._offered:
                log.info("taskset_accepted", taskset=name)
        elif offer is None and name in self._offered:
            log.warning("taskset_refused", taskset=name, doing="the synchronizer's log says why")
        else:
            if offer is None:
                await self._offer(own)
            self._offered.add(name)
            return
        del self._waiting[name]

    async def _offer(self, own: TasksetConfig) -> None:
        offer = TasksetOffered(
            run=self._bus.run,
            name=own.name,
            config=own.model_dump(mode="json"),
            offered_by=self._context.member.name,
            offered_at=time.time(),
        )
        try:
            await self._bus.swap(offer_key(own.name), offer, 0)
        except RevisionConflict:
            return  # another explorer brings it at the same time: compared at the next look
        log.info("taskset_offered", taskset=own.name, path=own.path)

    def _say(self, missing: Iterable[str], known: Iterable[str]) -> None:
        if (missing or self._waiting) and time.monotonic() - self._said_at > _SAY_AGAIN_S:
            self._said_at = time.monotonic()
            for name in missing:
                log.warning("waiting_for_taskset", taskset=name, in_the_run=sorted(known), doing=_NOBODY_YET)
            for name in self._offered & set(self._waiting):
                log.info("waiting_for_synchronizer", taskset=name, doing="it reads the rows that were offered")


_OTHER_NAME = "the run goes on with its own taskset of this name: give this one another name to add it"
_NOBODY_YET = "no task of it comes until an explorer brings it; correct explorer.tasksets if the name is wrong"


def _difference(offer: TasksetOffered, own: TasksetConfig) -> str:
    try:
        return differences(TasksetConfig.model_validate(offer.config), own)
    except ValueError as error:
        return f"what is offered under this name is no taskset: {error}"
