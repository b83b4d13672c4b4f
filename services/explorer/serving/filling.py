"""Committed groups become answers to tasks of the run, each exactly one.

The synchronizer releases one task for each group that a history has finished. Whoever pulls the task binds a group to
it: first in its history, then by a claim in the run's store, which the first keeps. Only then is the group published,
as the task's answer, and the task acknowledged last. So whatever is repeated after a crash is the same group for the
same task; a task that another history has claimed is left to it, and a group whose task is another's gets another one.
"""

import asyncio
import time

import structlog

from bus.errors import BusError, RevisionConflict
from bus.port import Delivery
from schemas.experiences import GroupSampled
from schemas.serving import ConversationsFinished, SlotClaimed
from schemas.state import TrainProgress
from schemas.tasks import TaskReleased
from services.explorer.serving.grouping import experiences_of
from services.explorer.serving.history import History
from services.rollout.served import SERVED
from services.runtime.context import Context
from services.runtime.keys import TRAIN, finished_key, slot_key

log = structlog.get_logger()

_MOST = 32
_PULL_WAIT_S = 1.0
_SWEEP_S = 5.0
_CLAIM_KEPT_S = 7 * 24 * 3600.0
_NOTHING_YET_S = 2.0


class Filling:
    """Publishes what one history has committed. `tokenizer` is the fingerprint that groups carry."""

    def __init__(self, context: Context, history: History, tokenizer: str) -> None:
        self._context = context
        self._bus = context.bus
        self._history = history
        self._tokenizer = tokenizer
        self._committed = asyncio.Event()
        self._told = -1
        self._swept_at = float("-inf")

    def committed(self) -> None:
        """There is more to publish."""
        self._committed.set()

    async def run(self) -> None:
        """Until cancelled. What the bus cannot take now is tried again."""
        queue = await self._bus.queue((SERVED,))
        while True:
            try:
                await self._tell_finished()
                unbound = await asyncio.to_thread(self._history.unbound)
                is_sweep = time.monotonic() - self._swept_at > _SWEEP_S
                if is_sweep:
                    await self._let_go()
                    self._swept_at = time.monotonic()
                if unbound or is_sweep:
                    for delivery in await queue.pull(min(max(1, unbound), _MOST), _PULL_WAIT_S):
                        await self._fill(delivery)
                else:
                    await self._wait()
            except BusError as error:
                log.warning("conversations_wait_for_bus", error=str(error))
                await asyncio.sleep(_PULL_WAIT_S)

    async def _wait(self) -> None:
        self._committed.clear()
        try:
            await asyncio.wait_for(self._committed.wait(), timeout=_PULL_WAIT_S)
        except TimeoutError:
            return

    async def _tell_finished(self) -> None:
        """Say how many tasks this history wants in all. The number only grows, whoever that shares it says it."""
        finished = await asyncio.to_thread(self._history.finished)
        while finished != self._told:
            held = await self._bus.get(finished_key(self._history.id))
            if held and isinstance(held.message, ConversationsFinished) and held.message.groups >= finished:
                break
            said = ConversationsFinished(
                run=self._bus.run,
                history=self._history.id,
                explorer=self._context.member.name,
                groups=finished,
                updated_at=time.time(),
            )
            try:
                await self._bus.swap(finished_key(self._history.id), said, held.revision if held else 0)
            except RevisionConflict:
                continue
            break
        self._told = finished

    async def _fill(self, delivery: Delivery) -> None:
        """Answer one task, or give it to whoever can."""
        task = delivery.message
        if not isinstance(task, TaskReleased):
            return
        claim = await self._claim_of(task.task.ordinal)
        if claim is not None and claim.history != self._history.id:
            await self._leave_to_owner(delivery, task, claim)
            return
        group = await self._claimed(task.task.ordinal) if claim is None else claim.group
        if group is None:
            await delivery.nak(_NOTHING_YET_S)
            return
        keeping = asyncio.create_task(self._keep(delivery))
        try:
            await self._publish(task, group, delivery.attempt)
        finally:
            keeping.cancel()
        await delivery.ack()

    async def _keep(self, delivery: Delivery) -> None:
        """Renew the task's lease: a full stream may keep us waiting."""
        while True:
            await asyncio.sleep(self._context.config.synchronizer.task_lease / 3)
            try:
                await delivery.in_progress()
            except BusError as error:
                log.warning("lease_not_renewed", error=str(error))

    async def _claim_of(self, ordinal: int) -> SlotClaimed | None:
        held = await self._bus.get(slot_key(ordinal))
        return held.message if held and isinstance(held.message, SlotClaimed) else None

    async def _claimed(self, ordinal: int) -> int | None:
        """Our group for a task that nobody has claimed; None without one, or where another was faster."""
        group = await asyncio.to_thread(self._history.bind, ordinal)
        if group is None:
            return None
        claim = SlotClaimed(
            run=self._bus.run, ordinal=ordinal, history=self._history.id, group=group, claimed_at=time.time()
        )
        held = await self._bus.get(slot_key(ordinal))
        if held is None or not isinstance(held.message, SlotClaimed):
            try:
                await self._bus.swap(slot_key(ordinal), claim, held.revision if held else 0, ttl_s=_CLAIM_KEPT_S)
            except RevisionConflict:
                pass  # looked at below: it may be ours, by a process that shares the history
            else:
                return group
        theirs = await self._claim_of(ordinal)
        if theirs is not None and theirs.history == self._history.id:
            return theirs.group
        await asyncio.to_thread(self._history.unbind, group)
        return None

    async def _let_go(self) -> None:
        """Groups that were bound before a crash, and whose task another history has claimed since, want another."""
        for group, ordinal in await asyncio.to_thread(self._history.unpublished):
            claim = await self._claim_of(ordinal)
            if claim is not None and claim.history != self._history.id:
                await asyncio.to_thread(self._history.unbind, group)
                log.info("conversation_wants_another_task", group=group, ordinal=ordinal)

    async def _publish(self, task: TaskReleased, group: int, attempt: int) -> None:
        name, messages = await asyncio.to_thread(self._history.messages_of, group)
        experiences = await asyncio.to_thread(experiences_of, messages)
        runs = max(experience.position for experience in experiences) + 1
        answer = GroupSampled(
            run=task.run,
            task=task.task,
            repeat_times=max(task.repeat_times, runs),
            explorer=self._context.member.name,
            incarnation=max(message.call.incarnation for message in messages),
            experiences=experiences,
            attempt=attempt,
            started_at=min(message.call.at for message in messages),
            finished_at=time.time(),
            tokenizer=self._tokenizer,
            retry=task.retry,
        )
        stored = await self._bus.publish(answer)
        await asyncio.to_thread(self._history.published, group)
        log.info("conversations_published", task=name, ordinal=task.task.ordinal, experiences=len(experiences))
        if not stored.is_duplicate:
            await self._report(task, answer)

    async def _report(self, task: TaskReleased, answer: GroupSampled) -> None:
        experiences = answer.experiences
        samples = {
            "rollout/reward": [experience.reward for experience in experiences],
            "rollout/response_length": [float(experience.response_length) for experience in experiences],
        }
        values = {
            "rollout/model_version": float(max(int(each.token_versions.max()) for each in experiences)),
            "rollout/finished_task_count:sum": 1.0,
            "rollout/sampled_tokens:sum": float(sum(int(each.action_mask.sum()) for each in experiences)),
        }
        await self._context.report(task.task.batch + 1, values, samples, parts=task.batch_tasks)

    async def _leave_to_owner(self, delivery: Delivery, task: TaskReleased, claim: SlotClaimed) -> None:
        """A task of another history: done with where it is answered. Nobody else may answer it: that history's group
        may be in the stream already, and would be lost as a second answer, or trained on under another task too."""
        if await self._is_answered(task.task.ordinal):
            await delivery.ack()
            return
        if delivery.attempt > self._context.config.synchronizer.max_deliver:
            log.warning(
                "task_waits_for_its_history",
                ordinal=task.task.ordinal,
                history=claim.history,
                todo=f"start the explorer that has it; where it is lost for good, delete {slot_key(task.task.ordinal)}",
            )
        await delivery.nak(self._context.config.synchronizer.task_lease)

    async def _is_answered(self, ordinal: int) -> bool:
        found = await self._bus.get(TRAIN)
        train = found.message if found and isinstance(found.message, TrainProgress) else None
        return train is not None and (ordinal < train.answered_floor or ordinal in train.answered_above)
