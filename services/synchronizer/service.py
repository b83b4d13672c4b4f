"""The synchronizer service: releases batches of tasks by the pace, and declares the run finished.

One synchronizer leads, by a lease; others stand by. All that the leader knows is in the key-value store under
compare-and-set, and every task carries its ordinal as message id, so a successor goes on exactly where it stopped.
"""

import asyncio
import time

import structlog

from bus.errors import RevisionConflict
from bus.port import Lease
from bus.subjects import Stream
from schemas.reports import EvaluationReported
from schemas.state import MemberSeen, ReleaseProgress, TrainProgress
from schemas.weights import WeightsAnnounced, WeightVersion
from services.runtime.context import Context
from services.runtime.keys import LEADER, MEMBERS, RELEASE, TRAIN
from services.synchronizer.pace import Facts, floor_version, waiting_for
from services.synchronizer.plan import Plan

log = structlog.get_logger()

_POLL_S = 0.1
_MEMBERS_S = 1.0
_SAY_AGAIN_S = 30.0
_FINAL_EVALUATION_S = 600.0


class Superseded(Exception):
    """Another synchronizer leads; this one must not release anything more."""


class Synchronizer:
    """One synchronizer, leading or standing by."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._bus = context.bus
        self._plan = plan
        self._progress = ReleaseProgress(term=1, phase="releasing", released=0, batches=0)
        self._revision = 0
        self._members: set[str] = set()
        self._said = ("", 0.0)
        self._finished_training_at: float | None = None

    async def run(self) -> None:
        """Lead when the lease falls to us, until the run is finished or we are asked to stop."""
        self._context.member.state = "standing by"
        lease = await self._take_lease()
        if lease is None:
            return
        self._context.member.state = "leading"
        log.info("leading", term=lease.term)
        try:
            await self._take_over(lease.term)
            await self._lead(lease)
        finally:
            await lease.release()

    async def _take_lease(self) -> Lease | None:
        """The lease, once it is free; None when the run ended or we were asked to stop meanwhile."""
        ttl_s = self._context.config.synchronizer.lease_ttl
        taking = asyncio.create_task(self._bus.lease(LEADER, self._context.member.name, ttl_s))
        try:
            while not taking.done():
                if await self._is_over():
                    return None
                await asyncio.wait([taking], timeout=0.5)
            return taking.result()
        finally:
            taking.cancel()

    async def _is_over(self) -> bool:
        """Whether there is nothing to lead: a finished run goes on only when its configuration now asks for more."""
        progress = await self._context.release()
        is_finished = progress is not None and progress.phase == "finished" and self._plan.tasks <= progress.released
        return self._context.stopping.is_set() or is_finished

    async def _take_over(self, term: int) -> None:
        held = await self._bus.get(RELEASE)
        if held and isinstance(held.message, ReleaseProgress):
            self._progress, self._revision = held.message, held.revision
        phase = "releasing" if self._progress.released < self._plan.tasks else self._progress.phase
        await self._save(term=term, phase=phase, total_tasks=self._plan.tasks, total_batches=self._plan.batches)

    async def _lead(self, lease: Lease) -> None:
        log.info(
            "run_planned",
            tasks=self._plan.tasks,
            batches=self._plan.batches,
            staleness_bound=self._plan.staleness_bound,
            released=self._progress.released,
        )
        watched_at = 0.0
        while not self._context.stopping.is_set() and self._progress.phase != "finished":
            if not lease.is_held:
                raise Superseded(f"the lease of term {lease.term} is lost: another synchronizer leads or will")
            if time.monotonic() - watched_at > _MEMBERS_S:
                await self._watch_members()
                watched_at = time.monotonic()
            if self._progress.phase == "releasing":
                await self._release_next()
            else:
                await self._end()
            await self._context.wait(_POLL_S)

    async def _release_next(self) -> None:
        """Release the next batch, when the pace allows it."""
        train = await self._train_progress()
        if self._is_trained_enough(train):
            await self._save(phase="draining", total_tasks=self._progress.released)
            return
        batch = self._progress.batches
        newest = await self._newest()
        facts = await self._facts(train, newest)
        reason = waiting_for(batch, self._plan.pace, facts)
        if reason is not None or newest is None:
            await self._say(f"batch {batch} waits for {reason}")
            return
        floor = WeightVersion(incarnation=newest.incarnation, version=floor_version(batch, self._plan.pace))
        tasks = await asyncio.to_thread(self._plan.batch, batch, floor)
        await self._bus.publish_all(tasks)
        released = self._progress.released + len(tasks)
        is_last = released >= self._plan.tasks
        await self._save(
            phase="draining" if is_last else "releasing", released=released, batches=batch + 1, waiting_for=""
        )
        log.info("batch_released", batch=batch, tasks=len(tasks), floor_version=floor.version, version=facts.version)

    def _is_trained_enough(self, train: TrainProgress | None) -> bool:
        """Whether the trainer has made all steps that are wanted, though tasks are left."""
        wanted = self._context.config.total_steps
        return wanted is not None and train is not None and train.is_finished and train.step >= wanted

    async def _newest(self) -> WeightVersion | None:
        newest = await self._bus.last(Stream.WEIGHTS)
        return newest.message.weights if newest and isinstance(newest.message, WeightsAnnounced) else None

    async def _facts(self, train: TrainProgress | None, newest: WeightVersion | None) -> Facts:
        queued = await self._bus.state(Stream.TASKS)
        return Facts(
            version=newest.version if newest else None,
            step=train.step if train else 0,
            oldest_unanswered=(train.answered_floor if train else 0) // self._plan.batch_size,
            outstanding=queued.messages / self._plan.batch_size,
        )

    async def _end(self) -> None:
        """All tasks are released: wait for the trainer, then for the last evaluation."""
        train = await self._train_progress()
        if train is None or not train.is_finished:
            await self._say("waiting for the trainer to train on the last answers")
            return
        if self._finished_training_at is None:
            self._finished_training_at = time.monotonic()
        waited_s = time.monotonic() - self._finished_training_at
        if waited_s < _FINAL_EVALUATION_S and not await self._is_judged(train.weights):
            await self._say(f"waiting for the evaluation of version {train.weights.version}")
            return
        await self._save(phase="finished", waiting_for="")
        log.info("run_finished", steps=train.step)

    async def _is_judged(self, final: WeightVersion) -> bool:
        """Whether every eval taskset has a report under the final weights; true where there is nobody to judge."""
        wanted = {taskset.name for taskset in self._context.config.eval_tasksets}
        if not wanted or not any(name.startswith("evaluator.") for name in self._members):
            return True
        async for delivery in self._bus.read(Stream.METRICS, follow=False):
            report = delivery.message
            if isinstance(report, EvaluationReported) and report.weights == final:
                wanted.discard(report.taskset)
        return not wanted

    async def _train_progress(self) -> TrainProgress | None:
        found = await self._bus.get(TRAIN)
        return found.message if found and isinstance(found.message, TrainProgress) else None

    async def _watch_members(self) -> None:
        entries = [entry.message for entry in await self._bus.entries(MEMBERS)]
        present = {f"{member.service}.{member.member}" for member in entries if isinstance(member, MemberSeen)}
        for name in sorted(present - self._members):
            log.info("member_joined", member=name)
        for name in sorted(self._members - present):
            log.warning("member_left", member=name)
        self._members = present

    async def _say(self, reason: str) -> None:
        """Log what the run waits for when it changes, and again every while; keep it where `status` reads it."""
        said, at = self._said
        if reason == said and time.monotonic() - at < _SAY_AGAIN_S:
            return
        if reason == said:
            log.info("still_waiting", reason=reason)
        self._said = (reason, time.monotonic())
        await self._save(waiting_for=reason)

    async def _save(self, **changes: object) -> None:
        """Record progress. A conflict means that another leader has taken over."""
        progress = self._progress.model_copy(update={**changes, "updated_at": time.time()})
        try:
            self._revision = await self._bus.swap(RELEASE, progress, self._revision)
        except RevisionConflict as error:
            raise Superseded(f"the progress of term {self._progress.term} was changed by another: {error}") from error
        self._progress = progress
