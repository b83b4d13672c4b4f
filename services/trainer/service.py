"""The trainer service: reads the experience stream, makes optimizer steps, announces weights, commits checkpoints.

The checkpoint is the commit point. On any start the trainer goes back to the newest checkpoint and reads the stream
from its ledger, so what was trained after that checkpoint is trained again and counted once.
"""

import asyncio
import time

import structlog

from bus.port import Delivery
from bus.subjects import Stream
from schemas.state import ReleaseProgress, TrainProgress
from services.config.reuse_rule import reuse_rule
from services.runtime.context import Context
from services.runtime.keys import RELEASE, TRAIN
from services.trainer.announcing import Announcer
from services.trainer.backends.port import Backend
from services.trainer.checks import Limits, fault
from services.trainer.committing import Committer, newest_on_disk
from services.trainer.incarnation import Incarnation, begin
from services.trainer.intake import Batch, Intake
from services.trainer.learning import Learner
from services.trainer.ledger import Ledger
from services.trainer.offline.experts import ExpertRows, experts_of
from services.trainer.offline.telling import of_rows
from services.trainer.performance import performance
from services.trainer.pipeline.build import pipeline_of
from services.trainer.pipeline.telling import told
from services.trainer.reuse.restoring import restored
from services.trainer.reuse.telling import of_reuse
from services.trainer.source import Source, source_of

log = structlog.get_logger()

READ_AHEAD_BATCHES = 4
_LOOK_AGAIN_S = 0.5
_SAY_AGAIN_S = 30.0


class Trainer:
    """One incarnation of the trainer."""

    _incarnation: Incarnation
    _announcer: Announcer
    _committer: Committer
    _source: Source
    _ledger: Ledger
    _intake: Intake
    _limits: Limits
    _experts: ExpertRows | None

    def __init__(self, context: Context, backend: Backend) -> None:
        self._context = context
        self._config = context.config
        self._bus = context.bus
        self._backend = backend
        self._learner = Learner(self._config, backend)
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._read_sequence = 0
        self._reward: float | None = None
        self._loss: float | None = None
        self._staleness: float | None = None
        self._waiting_for = ""
        self._said_at = float("-inf")
        self._is_finished = False

    async def run(self) -> None:
        """Train until the run is over, or until asked to stop, with a checkpoint at the end either way.

        Raises:
            Superseded: another trainer has begun this run.
            CannotResume: the newest checkpoint and the stream do not belong together.
        """
        on_disk = await asyncio.to_thread(newest_on_disk, self._config.run_dir)
        self._incarnation = await begin(self._bus, self._context.member.name, on_disk)
        self._announcer = Announcer(self._context, self._backend, self._incarnation)
        self._committer = Committer(self._context, self._learner, self._incarnation)
        self._source = await source_of(self._context)
        self._experts = await asyncio.to_thread(experts_of, self._config)
        if self._is_alone:
            await self._bus.delete(RELEASE)  # of a run that is gone on with: it is not over yet
        with self._context.activities.doing("starting"):
            await self._resume()
        await self._announce(time.time())
        helpers = [asyncio.create_task(self._read()), asyncio.create_task(self._publish_progress())]
        try:
            await self._train_all(helpers)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._source.close()
            await asyncio.to_thread(self._backend.stop)

    async def _resume(self) -> None:
        resumption = await self._committer.resume()
        replay = self._config.replay
        self._ledger = resumption.ledger
        self._intake = Intake(
            self._ledger,
            self._config.fresh_batch_size,
            self._source.run,
            replay.short_batches if replay else (),
            pipeline_of(self._config),
            reuse_rule(self._config),
        )
        await restored(self._source, self._intake)
        self._read_sequence = self._ledger.sequences.floor - 1
        await asyncio.to_thread(self._learner.start, resumption.directory)
        self._context.hear_signals()  # Ray ends its driver at SIGTERM: a last checkpoint would not be made
        is_sampled_elsewhere = self._config.rollout_model.engine_type == "fake"
        self._limits = Limits(
            vocabulary=None if is_sampled_elsewhere else self._backend.vocabulary,
            max_tokens=self._config.max_model_len,
            checks_versions=self._config.experience_source == "stream" or (replay is not None and replay.is_exact),
        )

    async def _train_all(self, helpers: list[asyncio.Task[None]]) -> None:
        while not self._context.stopping.is_set():
            batch = await self._next_batch(helpers)
            if batch is None:
                break
            if batch.owed == 0:  # nothing but duplicates and garbage at the end of the stream
                self._intake.commit(batch, self._ledger.step)
            else:
                await self._step(batch)
        is_over = not self._context.stopping.is_set()
        if self._committer.step < self._ledger.step or is_over:
            await self._save_checkpoint(is_last=is_over)
        if is_over:
            await self._finish()

    async def _finish(self) -> None:
        await self._announce(time.time(), is_final=True)
        self._is_finished = True
        await self._put_progress()
        if self._is_alone:
            await self._declare_finished()
        log.info("training_finished", step=self._ledger.step)
        await self._context.report(self._ledger.step)
        await self._until_finished()

    async def _read(self) -> None:
        """Offer the stream to the intake, oldest first, a few batches ahead of training."""
        async for delivery in self._source.read(self._ledger.sequences.floor):
            rule = self._source.rule(delivery)
            words = None if rule else fault(delivery.message, self._limits, self._intake.steps)
            if words is not None:
                await self._refuse(delivery, words)
            self._intake.offer(delivery.sequence, None if words else delivery.message, rule)
            self._read_sequence = delivery.sequence
            self._changed.set()
            if self._intake.ready >= READ_AHEAD_BATCHES:
                self._taken.clear()
                await self._taken.wait()
        self._changed.set()

    async def _refuse(self, delivery: Delivery, words: str) -> None:
        """A group that this model cannot be trained on. Its task is released again by the synchronizer."""
        log.error("group_quarantined", sequence=delivery.sequence, subject=delivery.subject, reason=words)
        if not self._is_alone:
            await self._bus.quarantine(delivery, Stream.EXPERIENCES, words)

    async def _next_batch(self, helpers: list[asyncio.Task[None]]) -> Batch | None:
        """The next full batch; the rest when nothing more will come; None when nothing is left to train."""
        self._context.member.state = "waiting"
        while self._intake.ready == 0:
            if self._is_at_last_step() or self._context.stopping.is_set():
                return None
            if await self._source.is_over(self._intake.answered.floor, self._read_sequence):
                rest = None if self._intake.ready else self._intake.take()
                if rest is not None:
                    return rest if rest.entries else None
                break
            await self._wait_for_more(helpers)
        self._taken.set()
        self._waiting_for = ""
        return None if self._is_at_last_step() else self._intake.take()

    async def _wait_for_more(self, helpers: list[asyncio.Task[None]]) -> None:
        await self._look_at_stream()
        self._changed.clear()
        waiting = asyncio.create_task(self._changed.wait())
        running = [helper for helper in helpers if not helper.done()]
        await asyncio.wait([waiting, *running], timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for helper in helpers:
            if helper.done():
                helper.result()

    async def _look_at_stream(self) -> None:
        """Where the trainer waits at a full stream, make room by a checkpoint, or say why there is none."""
        if await self._committer.makes_room(self._ledger):
            await self._save_checkpoint()
        why = await self._committer.why_full(self._ledger, self._intake.gathered)
        if why and time.monotonic() - self._said_at > _SAY_AGAIN_S:
            self._said_at = time.monotonic()
            log.warning("experience_stream_full", todo=why)
        self._waiting_for = why

    def _is_at_last_step(self) -> bool:
        replay = self._config.replay
        ends = [self._config.total_steps, replay.to_step if replay else None]
        return any(end is not None and self._ledger.step >= end for end in ends)

    async def _step(self, batch: Batch) -> None:
        """One optimizer step, then the ledger, the weights, the checkpoint, the metrics: in this order."""
        step = self._ledger.step + 1
        self._context.member.state = f"training step {step}"
        started = time.monotonic()
        if self._experts is not None:
            batch.experts = await asyncio.to_thread(self._experts.of, step)
        metrics = self._told(await self._update(batch, step))
        ended_at = time.time()
        metrics["time/train_step"] = time.monotonic() - started
        self._intake.commit(batch, step)
        if step % self._sync_interval() == 0:
            await self._put_progress()
            metrics["time/sync_weight"] = await self._announce(ended_at)
        if self._is_checkpoint_due(step) or await self._committer.makes_room(self._ledger):
            metrics["time/save_checkpoint"] = await self._save_checkpoint(is_last=self._is_at_last_step())
        metrics["time/step"] = time.monotonic() - started
        metrics |= performance(metrics, self._config.trainer_ranks)
        metrics |= of_reuse(batch.drawn) if self._intake.may_reuse else {}
        fresh = len(batch.experiences) - batch.drawn.experiences
        metrics |= told(fresh, (entry.filtered for entry in batch.entries), batch.metrics)
        metrics["sample/quarantined"] = float(sum(entry.fate == "quarantined" for entry in batch.entries))
        metrics["sample/duplicates"] = float(sum(entry.fate == "duplicate" for entry in batch.entries))
        await self._context.report(step, metrics)
        log.info("step_trained", step=step, reward=metrics.get("critic/rewards/mean"), seconds=metrics["time/step"])

    def _is_checkpoint_due(self, step: int) -> bool:
        interval = self._config.trainer.save_interval
        return interval > 0 and step % interval == 0

    async def _update(self, batch: Batch, step: int) -> dict[str, float]:
        if not batch.groups:
            log.warning("step_without_experiences", step=step, reason="all of it was abandoned or filtered")
            return {}
        with self._context.activities.doing("training"):
            metrics = await asyncio.to_thread(self._learner.learn, batch, step)
        return self._judged(metrics, step)

    def _told(self, metrics: dict[str, float]) -> dict[str, float]:
        """Keep what the progress view shows of a step."""
        if self._config.experience_source == "rows":
            metrics = of_rows(metrics)
        self._reward = metrics.get("critic/rewards/mean", self._reward)
        self._staleness = metrics.get("sample/model_version_drift/mean", self._staleness)
        self._loss = metrics.get("actor/pg_loss", self._loss)
        return metrics

    def _judged(self, metrics: dict[str, float], step: int) -> dict[str, float]:
        """Whether a replay is further from the policy that sampled than it may be."""
        replay = self._config.replay
        if replay is None or "actor/ppo_kl" not in metrics:
            return metrics
        is_off = abs(metrics["actor/ppo_kl"]) > replay.max_kl
        if is_off:
            log.warning("replay_off_policy", step=step, ppo_kl=metrics["actor/ppo_kl"], max_kl=replay.max_kl)
        return metrics | {"replay/is_off_policy": float(is_off)}

    async def _announce(self, step_ended_at: float, is_final: bool = False) -> float:
        seconds = await self._announcer.announce(self._ledger.step, step_ended_at, is_final)
        await self._put_progress()
        await self._announcer.prune()
        return seconds

    async def _save_checkpoint(self, is_last: bool = False) -> float:
        seconds = await self._committer.save(self._ledger, is_last)
        await self._put_progress()
        return seconds

    async def _publish_progress(self) -> None:
        """Say how far the stream is read and answered, as soon as that changes: the pace waits for it."""
        said: tuple[int, int, str] | None = None
        while True:
            now = (self._intake.answered.floor, self._read_sequence, self._waiting_for)
            if now != said:
                await self._put_progress()
                said = now
            await asyncio.sleep(0.1)

    async def _put_progress(self) -> None:
        answered = self._intake.answered
        await self._bus.put(
            TRAIN,
            TrainProgress(
                weights=self._announcer.weights,
                step=self._ledger.step,
                total_steps=self._source.steps if self._config.total_steps is None else self._config.total_steps,
                answered_floor=answered.floor,
                answered_above=tuple(sorted(answered.above)),
                answered=len(answered),
                checkpoint_step=self._committer.step,
                counts=self._ledger.counts,
                reward=self._reward,
                loss=self._loss,
                staleness=self._staleness,
                sequence_floor=self._ledger.sequences.floor,
                read_sequence=self._read_sequence,
                waiting_for=self._waiting_for,
                batches_closed=self._intake.steps,
                gathered=self._intake.gathered,
                is_finished=self._is_finished,
                updated_at=time.time(),
            ),
        )

    async def _declare_finished(self) -> None:
        """Where there is no synchronizer, the trainer knows when the run is over."""
        ended = ReleaseProgress(term=1, phase="finished", released=0, batches=0, updated_at=time.time())
        await self._bus.put(RELEASE, ended)

    async def _until_finished(self) -> None:
        """Stay a member until the run is declared finished, so that nobody believes the trainer dead."""
        self._context.member.state = "finished"
        while not self._context.stopping.is_set() and await self._context.phase() != "finished":
            await self._context.wait(0.5)

    @property
    def _is_alone(self) -> bool:
        """Whether nobody samples for this run: its experiences come from elsewhere."""
        return self._config.experience_source != "stream"

    def _sync_interval(self) -> int:
        synchronizer = self._config.synchronizer
        return synchronizer.trainer_sync_interval or synchronizer.sync_interval
