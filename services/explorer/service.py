"""The explorer service: pulls tasks, answers them on one engine, publishes groups.

It may join and leave at any time. Asked to leave, it takes no more tasks, finishes what it can within
`explorer.leave_timeout`, and hands back the rest. A task whose earlier deliveries ended with their explorers is
answered alone before it is given up.
"""

import asyncio
from collections.abc import Sequence

import structlog

from bus.port import Delivery
from services.explorer.answering import Answering
from services.explorer.offering import Offering
from services.explorer.openai_api import offered
from services.explorer.weights import Adoption
from services.inference.auxiliary import Auxiliaries
from services.inference.engine import Engine
from services.rollout.policy import NO_AUXILIARIES
from services.runtime.context import Context

log = structlog.get_logger()

_PULL_WAIT_S = 1.0


class Explorer:
    """One engine, the auxiliary models beside it, and the tasks in its hands."""

    def __init__(self, context: Context, engine: Engine, auxiliary: Auxiliaries = NO_AUXILIARIES) -> None:
        self._context = context
        self._engine = engine
        self._adoption = Adoption(context, engine)
        self._auxiliary = auxiliary
        self._answering = Answering(context, engine, self._adoption, auxiliary)
        self._offering = Offering(context)
        self._in_hand: set[asyncio.Task[None]] = set()
        self._one_by_one = False

    async def run(self) -> None:
        """Answer tasks until the run is finished, or until asked to leave."""
        with self._context.activities.doing("starting"):
            await self._engine.start()
            await self._auxiliary.start()
        helpers = [asyncio.create_task(self._adoption.run()), asyncio.create_task(self._offering.run())]
        try:
            async with offered(self._context, self._engine):
                await self._answer_tasks(helpers)
                await self._leave()
        finally:
            for helper in helpers:
                helper.cancel()
            await self._hand_back()
            await self._engine.stop()
            await self._auxiliary.stop()

    async def _answer_tasks(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        queue = await self._context.bus.queue(self._context.config.explorer.tasksets)
        most = self._context.config.explorer.runner_per_model
        while not self._context.stopping.is_set():
            self._say_state()
            self._raise_failures(helpers)
            room = min(most, 1) if self._one_by_one else most
            if self._engine.weights is None or len(self._in_hand) >= room:
                await self._a_task_ends(0.2)
                continue
            deliveries = await queue.pull(room - len(self._in_hand), _PULL_WAIT_S)
            await self._take(deliveries)
            if not deliveries and not self._in_hand and await self._context.phase() == "finished":
                log.info("run_finished")
                return

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        """Begin to answer. What has to be answered alone is, or is handed back until we have nothing else in hand."""
        most = self._context.config.synchronizer.max_deliver
        tried = [(delivery, await self._answering.tried(delivery)) for delivery in deliveries]
        alone = [(delivery, before) for delivery, before in tried if before.is_last_chance(most)]
        beside = [pair for pair in tried if pair not in alone]
        for delivery, before in beside:
            self._begin(delivery, before.attempt)
        if alone and not self._in_hand:
            delivery, before = alone.pop(0)
            log.warning("answering_alone", task=delivery.subject, deaths=before.deaths, attempt=before.attempt)
            self._begin(delivery, before.attempt)
            self._one_by_one = True
        elif deliveries:
            self._one_by_one = bool(alone)
        for delivery, _ in alone:
            await self._answering.hand_back(delivery)

    def _begin(self, delivery: Delivery, attempt: int) -> None:
        self._in_hand.add(asyncio.create_task(self._answering.handle(delivery, attempt)))

    def _raise_failures(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        """A failure of the engine or of ourselves ends the process; its tasks are handed back."""
        for helper in helpers:
            if helper.done():
                helper.result()
        done = {task for task in self._in_hand if task.done()}
        self._in_hand -= done
        for task in done:
            task.result()

    async def _a_task_ends(self, seconds: float) -> None:
        if self._in_hand:
            await asyncio.wait(self._in_hand, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await self._context.wait(seconds)

    async def _leave(self) -> None:
        if not self._in_hand:
            return
        patience_s = self._context.config.explorer.leave_timeout
        log.info("explorer_leaving", tasks_in_hand=len(self._in_hand), leave_timeout_s=patience_s)
        self._context.member.state = "leaving"
        done, rest = await asyncio.wait(self._in_hand, timeout=patience_s)
        log.info("explorer_left", finished=len(done), handed_back=len(rest))

    async def _hand_back(self) -> None:
        for task in self._in_hand:
            task.cancel()
        await asyncio.gather(*self._in_hand, return_exceptions=True)

    def _say_state(self) -> None:
        member = self._context.member
        load = self._engine.load_now()
        member.tasks_in_hand = len(self._in_hand)
        member.detail = {"requests": float(load.requests), "tokens_sampled": float(load.tokens_sampled)}
        if self._engine.weights is None:
            member.state = "waiting for weights"
        else:
            member.state = "sampling" if self._in_hand else "waiting for tasks"
