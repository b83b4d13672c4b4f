"""The synchronizer service: releases batches of tasks by the pace, and declares the run finished.

One synchronizer leads, by a lease; others stand by. All that the leader knows is in the key-value store under
compare-and-set, and is written there before it is acted on. A successor repeats what its predecessor may have left
undone, and every task carries its ordinal as message id, so nothing is released twice.
"""

import asyncio
import time
from collections.abc import Sequence

import structlog

from bus.port import Bus, Lease
from bus.subjects import MESSAGE_IDS, Stream, task_subject
from schemas.codec import encode
from schemas.experiences import TaskAbandoned
from schemas.reports import EvaluationReported, Quarantined
from schemas.state import MemberSeen, TrainProgress
from schemas.tasks import TaskReleased
from schemas.weights import WeightsAnnounced, WeightVersion
from services.runtime.context import Context
from services.runtime.keys import LEADER, MEMBERS, TRAIN, excuse_key
from services.synchronizer.offers import Offers
from services.synchronizer.pace import Facts, floor_version, waiting_for
from services.synchronizer.plan import Plan, planned
from services.synchronizer.progress import Progress
from services.synchronizer.recovery import Recovery, judged, unanswered
from services.synchronizer.refill import recorded, tasks_made_up
from services.synchronizer.selection import Selection
from services.synchronizer.serving import NO_TASKSETS, groups_finished

log = structlog.get_logger()

_POLL_S = 0.1
_LOOK_S = 1.0
_SAY_AGAIN_S = 30.0
_FINAL_EVALUATION_S = 600.0
_EVALUATOR_ABSENCE_S = 120.0
"""For so long a dead evaluator may be on its way back."""


class Synchronizer:
    """One synchronizer, leading or standing by. `plan` is what its own configuration asks for."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._bus = context.bus
        self._plan = plan

    async def run(self) -> None:
        """Lead when the lease falls to us, until the run is finished or we are asked to stop."""
        self._context.member.state = "standing by"
        lease = await self._take_lease()
        if lease is None:
            return
        self._context.member.state = "leading"
        log.info("leading", term=lease.term)
        try:
            await Leader(self._context, self._plan, lease).lead()
        finally:
            await lease.release()

    async def _take_lease(self) -> Lease | None:
        """The lease, once it is free; None when the run ended or we were asked to stop meanwhile."""
        ttl_s = self._context.config.synchronizer.lease_ttl
        before = await self._context.release()
        was_finished = before is not None and before.phase == "finished"
        taking = asyncio.create_task(self._bus.lease(LEADER, self._context.member.name, ttl_s))
        try:
            while not taking.done():
                if await self._is_over(was_finished):
                    return None
                await asyncio.wait([taking], timeout=0.5)
            return taking.result()
        finally:
            taking.cancel()

    async def _is_over(self, was_finished: bool) -> bool:
        """Whether there is nothing to lead. A run that was finished when we came goes on when its configuration now
        asks for more; one that has been finished since does not."""
        if self._context.stopping.is_set():
            return True
        progress = await self._context.release()
        if progress is None or progress.phase != "finished":
            return False
        return not was_finished or self._plan.is_trained(progress.released, await _train_progress(self._bus))


class Leader:
    """The synchronizer that leads, for one term."""

    def __init__(self, context: Context, plan: Plan, lease: Lease) -> None:
        self._context = context
        self._bus = context.bus
        self._plan = plan
        self._term = lease.term
        self._progress = Progress(context.bus, lease)
        self._offers = Offers(context.bus, context.member.name, NO_TASKSETS if plan.is_served else "")
        self._recovery = Recovery(context.bus, 0)
        self._selection = Selection(context.bus, lease.term)
        self._members: set[str] = set()
        self._evaluator_seen_at = float("-inf")
        self._said = ("", 0.0)
        self._finished_training_at: float | None = None

    async def lead(self) -> None:
        """Release the run to its end, or until asked to stop.

        Raises:
            Superseded: another leads.
        """
        await self._take_over()
        looked_at = 0.0
        while not self._context.stopping.is_set() and self._progress.now.phase != "finished":
            await self._progress.assert_leading()
            train = await _train_progress(self._bus)
            if time.monotonic() - looked_at > _LOOK_S:
                await self._look_around(train)
                looked_at = time.monotonic()
            if self._progress.now.phase == "releasing":
                await self._release_next(train)
            else:
                await self._end(train)
            await self._context.wait(_POLL_S)

    async def _take_over(self) -> None:
        """Adopt the recorded plan and do again what the predecessor may have left undone."""
        await self._progress.take_over()
        self._recovery = Recovery(self._bus, (await self._bus.state(Stream.TASKS)).last)
        await self._adopt_plan()
        log.info(
            "run_planned",
            tasks=self._plan.tasks,
            batches=self._plan.batches,
            staleness_bound=self._plan.staleness_bound,
            released=self._progress.now.released,
        )
        await self._repeat_last_batch()

    async def _adopt_plan(self) -> None:
        """The plan that the segments say, with tasksets of our own configuration that the run does not have yet."""
        now, own = self._progress.now, {taskset.name: taskset for taskset in self._plan.mixture.tasksets}
        if now.segments:
            names = list(dict.fromkeys(share.name for segment in now.segments for share in segment.tasksets))
            opened = await self._offers.open_recorded(names, own)
            self._plan = planned(self._context.config, opened, now.segments)
            for taskset in [taskset for name, taskset in own.items() if name not in names]:
                log.info("taskset_added", taskset=taskset.name, rows=len(taskset), from_task=now.released)
                await self._offers.record(taskset)
                self._plan = self._plan.with_taskset(taskset, now.released)
        else:
            for taskset in own.values():
                await self._offers.record(taskset)
        self._plan = self._plan.with_choices(self._selection)
        await self._save_plan()

    async def _save_plan(self) -> None:
        now, train = self._progress.now, await _train_progress(self._bus)
        phase = now.phase if self._plan.is_through(now.released, train) else "releasing"
        if phase == "finished" and not self._plan.is_trained(now.released, train):
            phase = "draining"
        await self._progress.save(
            phase=phase,
            total_tasks=self._plan.told_end(self._made_up(train)),
            total_batches=self._plan.batches,
            segments=self._plan.mixture.segments,
        )

    async def _repeat_last_batch(self) -> None:
        """The newest batch was recorded before it was published: its tasks are published again, under the same ids."""
        now, newest = self._progress.now, await self._newest()
        if now.released == 0 or newest is None or now.phase == "finished":
            return
        last = self._plan.newest_batch(now.released, now.refills)
        missing = sorted(unanswered(now.released, await _train_progress(self._bus)) & set(last))
        again = {each.ordinal for each in now.reissued}
        await self._publish([ordinal for ordinal in missing if ordinal not in again], newest)

    async def _look_around(self, train: TrainProgress | None) -> None:
        """What is looked at now and then: who is there, what was lost, what is offered."""
        await self._watch_members()
        await self._recover(train)
        if self._progress.now.phase == "releasing":
            await self._take_offers()

    async def _take_offers(self) -> None:
        """Mix in the tasksets that explorers have brought, from the next task on."""
        for taskset in await self._offers.accepted():
            now = self._progress.now
            self._plan = await asyncio.to_thread(self._plan.with_taskset, taskset, now.released)
            await self._save_plan()
            log.info(
                "taskset_added",
                taskset=taskset.name,
                rows=len(taskset),
                from_task=now.released,
                tasks=self._plan.tasks,
            )

    async def _release_next(self, train: TrainProgress | None) -> None:
        """Release the next batch, when the pace allows it."""
        now = self._progress.now
        if self._is_trained_enough(train):
            await self._progress.save(phase="draining", total_tasks=now.released)
            return
        made_up = self._made_up(train)
        ordinals = self._plan.next_batch(now.released, made_up)
        if not ordinals:
            await self._drain(train)
            return
        if self._plan.is_served:
            ordinals = ordinals[: max(0, await groups_finished(self._bus) - now.released)]
            if not ordinals:
                await self._say("the next task waits for a conversation that is committed")
                return
        batch, newest = (now.released - made_up) // self._plan.batch_size, await self._newest()
        facts = await self._facts(train, newest, batch)
        reason = waiting_for(batch, self._plan.pace, facts)
        if reason is not None or newest is None:
            await self._say(f"batch {batch} waits for {reason}")
            return
        is_last = self._plan.config.total_steps is None and ordinals.stop >= self._plan.tasks
        await self._progress.save(
            phase="draining" if is_last else "releasing",
            released=ordinals.stop,
            batches=self._plan.batches_of(ordinals.stop - made_up),
            total_tasks=self._plan.told_end(made_up),
            refills=recorded(now.refills, ordinals.start, made_up, train.answered_floor if train else 0),
            waiting_for="",
        )
        await self._publish(ordinals, newest)
        floor = floor_version(batch, self._plan.pace)
        log.info(
            "batch_released",
            batch=batch,
            tasks=len(ordinals),
            floor_version=floor,
            version=facts.version,
            made_up=made_up,
        )

    async def _drain(self, train: TrainProgress | None) -> None:
        """No task is left to release, unless more of the answers are filtered."""
        released = self._progress.now.released
        if self._plan.is_through(released, train):
            await self._progress.save(phase="draining", total_tasks=released)
        else:
            await self._say("the last steps wait for answers")

    def _made_up(self, train: TrainProgress | None) -> int:
        """The released tasks that count for nothing, because what they gave was filtered."""
        config, released = self._plan.config, self._progress.now.released
        waiting = len(unanswered(released, train))
        return tasks_made_up(released, waiting, train, config.fresh_batch_size, config.repeat_times)

    async def _publish(self, ordinals: Sequence[int], newest: WeightVersion, retry: int = 0) -> list[TaskReleased]:
        """Publish tasks, unless the lease is over."""
        await self._selection.prepare(self._plan.mixture, ordinals)
        incarnation = newest.incarnation
        refills = self._progress.now.refills
        tasks = await asyncio.to_thread(self._plan.released_tasks, ordinals, incarnation, self._term, retry, refills)
        await self._progress.assert_leading()
        self._recovery.published(tasks, await self._bus.publish_all(tasks))
        return tasks

    async def _recover(self, train: TrainProgress | None) -> None:
        """Release again the tasks whose message or answer was lost; give up those that were lost too often."""
        ordinals, newest = await self._recovery.lost(self._progress.now.released, train), await self._newest()
        if not ordinals or newest is None:
            return
        most = self._context.config.synchronizer.max_deliver
        verdict = judged(ordinals, self._progress.now.reissued, most, self._recovery.sequences)
        await self._progress.save(reissued=verdict.reissued)
        for ordinal in verdict.again:
            retry = verdict.retry(ordinal)
            await self._bus.delete(excuse_key(ordinal))
            (task,) = await self._publish([ordinal], newest, retry)
            log.warning(
                "task_reissued",
                task=task.task.task_id,
                ordinal=ordinal,
                retry=retry,
                reason="its message or its answer was lost: it is in neither stream",
            )
        for ordinal in verdict.given_up:
            await self._give_up(ordinal, newest, verdict.retry(ordinal))

    async def _give_up(self, ordinal: int, newest: WeightVersion, times: int) -> None:
        """Quarantine a task that was lost again and again, and say in the experience stream that no answer comes."""
        tasks = await asyncio.to_thread(self._plan.released_tasks, [ordinal], newest.incarnation, self._term, times - 1)
        (task,) = tasks
        error = f"its message or its answer was lost {times} times"
        await self._progress.assert_leading()
        await self._bus.publish(
            Quarantined(
                run=self._bus.run,
                reason=error,
                stream=str(Stream.TASKS),
                subject=task_subject(self._bus.run, task.task.taskset),
                sequence=self._recovery.sequences[ordinal],
                payload=encode(task),
                origin=self._context.member.name,
                attempts=times,
                at=time.time(),
                message_id=MESSAGE_IDS[TaskReleased](task),
            )
        )
        await self._bus.publish(
            TaskAbandoned(
                run=self._bus.run,
                task=task.task,
                repeat_times=task.repeat_times,
                explorer=self._context.member.name,
                attempts=times,
                error=error,
                abandoned_at=time.time(),
                retry=times,
            )
        )
        log.error("task_abandoned", task=task.task.task_id, ordinal=ordinal, attempts=times, error=error)

    def _is_trained_enough(self, train: TrainProgress | None) -> bool:
        """Whether the trainer has made all steps that are wanted, though tasks are left."""
        wanted = self._context.config.total_steps
        return wanted is not None and train is not None and train.is_finished and train.step >= wanted

    def _is_trained_through(self, train: TrainProgress) -> bool:
        """Whether the trainer has finished this run, and not only what was asked of it before."""
        is_answered = train.answered_floor >= self._progress.now.released
        return train.is_finished and (is_answered or self._is_trained_enough(train))

    async def _newest(self) -> WeightVersion | None:
        newest = await self._bus.last(Stream.WEIGHTS)
        return newest.message.weights if newest and isinstance(newest.message, WeightsAnnounced) else None

    async def _facts(self, train: TrainProgress | None, newest: WeightVersion | None, batch: int) -> Facts:
        queued, now = await self._bus.state(Stream.TASKS), self._progress.now
        waiting = unanswered(now.released, train)
        return Facts(
            version=newest.version if newest else None,
            step=train.step if train else 0,
            oldest_unanswered=min((self._plan.batch_of(each, now.refills) for each in waiting), default=batch),
            outstanding=queued.messages / self._plan.batch_size,
        )

    async def _end(self, train: TrainProgress | None) -> None:
        """All tasks are released: wait for the trainer, then for the last evaluation."""
        if train is None or not self._is_trained_through(train):
            await self._say("waiting for the trainer to train on the last answers")
            return
        if self._finished_training_at is None:
            self._finished_training_at = time.monotonic()
        waited_s = time.monotonic() - self._finished_training_at
        if waited_s < _FINAL_EVALUATION_S and not await self._is_judged(train.weights):
            await self._say(f"waiting for the evaluation of version {train.weights.version}")
            return
        await self._progress.save(phase="finished", waiting_for="")
        log.info("run_finished", steps=train.step)

    async def _is_judged(self, final: WeightVersion) -> bool:
        """Whether every eval taskset has a report under the final weights; true where there is nobody to judge."""
        wanted = {taskset.name for taskset in self._context.config.eval_tasksets}
        if not wanted or time.monotonic() - self._evaluator_seen_at > _EVALUATOR_ABSENCE_S:
            return True
        async for delivery in self._bus.read(Stream.METRICS, follow=False):
            report = delivery.message
            if isinstance(report, EvaluationReported) and report.weights == final:
                wanted.discard(report.taskset)
        return not wanted

    async def _watch_members(self) -> None:
        entries = [entry.message for entry in await self._bus.entries(MEMBERS)]
        present = {f"{member.service}.{member.member}" for member in entries if isinstance(member, MemberSeen)}
        for name in sorted(present - self._members):
            log.info("member_joined", member=name)
        for name in sorted(self._members - present):
            log.warning("member_left", member=name)
        self._members = present
        if any(name.startswith("evaluator.") for name in present):
            self._evaluator_seen_at = time.monotonic()

    async def _say(self, reason: str) -> None:
        """Log what the run waits for when it changes, and again every while; keep it where `status` reads it."""
        said, at = self._said
        if reason == said and time.monotonic() - at < _SAY_AGAIN_S:
            return
        if reason == said:
            log.info("still_waiting", reason=reason)
        self._said = (reason, time.monotonic())
        await self._progress.save(waiting_for=reason)


async def _train_progress(bus: Bus) -> TrainProgress | None:
    found = await bus.get(TRAIN)
    return found.message if found and isinstance(found.message, TrainProgress) else None
