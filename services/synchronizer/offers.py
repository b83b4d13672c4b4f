"""Tasksets that explorers bring: which offers are taken, and which configuration of a taskset holds for the run.

The store keeps the configuration of every taskset of the run, so that any successor opens the same ones.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog
from pydantic import ValidationError

from bus.port import Bus
from schemas.message import Message
from schemas.state import TasksetOffered
from services.rollout.config import TasksetConfig
from services.rollout.errors import RolloutError
from services.rollout.offering import ROWS, differences, located
from services.rollout.tasksets import Taskset, open_taskset
from services.runtime.keys import OFFERS, offer_key

log = structlog.get_logger()

_ADVICE = (
    "going on without it; the synchronizer reads the rows of every taskset: put them where it finds them too, and "
    "start the explorer that offers it again"
)


class OfferRefused(Exception):
    """A taskset that cannot be part of the run. The message says what to do."""


def config_of(offer: TasksetOffered) -> TasksetConfig:
    """The configuration that an offer carries.

    Raises:
        OfferRefused: it is none, or that of another taskset.
    """
    try:
        config = TasksetConfig.model_validate(offer.config)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise OfferRefused(
            f"it is not configured as a taskset ({problems}): correct it there and start again"
        ) from error
    if config.name != offer.name or config.is_eval:
        raise OfferRefused(f"it is the configuration of {config.name!r} (is_eval={config.is_eval}): offer it as that")
    return config


def settled(recorded: TasksetConfig, own: TasksetConfig | None) -> TasksetConfig:
    """Which configuration of a taskset holds: our own, unless the recorded one has other rows."""
    if own is None:
        return recorded
    found = differences(recorded, own, ROWS)
    if not found:
        return own
    log.warning(
        "taskset_differs",
        taskset=own.name,
        difference=found,
        doing="going on with the rows that the run began with; give the others another name, or start another run",
    )
    return recorded


class Offers:
    """The tasksets in the run's store, as one leader sees them."""

    def __init__(self, bus: Bus, member: str, refusal: str = "") -> None:
        """`refusal` says why no offer is taken, whatever it is."""
        self._bus = bus
        self._member = member
        self._refusal = refusal
        self._recorded: dict[str, TasksetOffered] = {}

    async def open_recorded(self, names: Sequence[str], own: Mapping[str, Taskset]) -> list[Taskset]:
        """The tasksets of these names, opened, and recorded where they are not. Where the recorded rows cannot be
        read here, our own are.

        Raises:
            OfferRefused: nobody knows a taskset's configuration.
            RolloutError: its rows cannot be read.
        """
        return [await self._opened(name, own.get(name)) for name in names]

    async def _opened(self, name: str, own: Taskset | None) -> Taskset:
        held = await self._bus.get(offer_key(name))
        if held is None or not isinstance(held.message, TasksetOffered):
            if own is None:
                raise OfferRefused(
                    f"taskset {name!r} is in the run, but its configuration is not in the store: configure it here too"
                )
            await self.record(own)
            return own
        self._recorded[name] = held.message
        config = settled(config_of(held.message), own.config if own else None)
        if own is not None and config == own.config:
            return own
        try:
            return await asyncio.to_thread(open_taskset, config)
        except RolloutError as error:
            if own is None:
                raise
            log.warning("taskset_read_from_elsewhere", taskset=name, path=own.config.path, reason=str(error))
            return own

    async def record(self, taskset: Taskset) -> None:
        """Keep the configuration for whoever takes over."""
        offer = TasksetOffered(
            run=self._bus.run,
            name=taskset.name,
            config=located(taskset.config).model_dump(mode="json"),
            offered_by=self._member,
            offered_at=time.time(),
        )
        self._recorded[taskset.name] = offer
        await self._bus.put(offer_key(taskset.name), offer)

    async def accepted(self) -> list[Taskset]:
        """The tasksets that have been offered since the last look, opened, the oldest offer first."""
        entries = sorted(await self._bus.entries(OFFERS), key=lambda entry: entry.revision)
        present = {entry.key for entry in entries}
        for name, recorded in self._recorded.items():
            if offer_key(name) not in present:
                await self._bus.put(offer_key(name), recorded)
        opened = [await self._judged(entry.key, entry.message) for entry in entries]
        return [taskset for taskset in opened if taskset is not None]

    async def _judged(self, key: str, offer: Message) -> Taskset | None:
        """The taskset of an offer that is new and good. One that is not is taken away, so that it is looked at once,
        and whoever made it sees it go."""
        if not isinstance(offer, TasksetOffered) or offer == self._recorded.get(offer.name):
            return None
        try:
            if self._refusal:
                raise OfferRefused(self._refusal)
            if offer.run != self._bus.run or key != offer_key(offer.name):
                raise OfferRefused(f"it names taskset {offer.name!r} of run {offer.run!r} at key {key!r}")
            if offer.name in self._recorded:
                found = differences(config_of(self._recorded[offer.name]), config_of(offer))
                raise OfferRefused(f"the run has another taskset of this name ({found}): give it a name of its own")
            taskset = await asyncio.to_thread(open_taskset, config_of(offer))
        except (OfferRefused, RolloutError, OSError) as error:
            log.error(
                "taskset_refused", taskset=offer.name, offered_by=offer.offered_by, reason=str(error), doing=_ADVICE
            )
            await self._take_away(key, offer)
            return None
        self._recorded[offer.name] = offer
        return taskset

    async def _take_away(self, key: str, offer: TasksetOffered) -> None:
        mine = self._recorded.get(offer.name)
        if mine is not None and key == offer_key(offer.name):
            await self._bus.put(key, mine)
        else:
            await self._bus.delete(key)
