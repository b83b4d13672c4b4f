"""The trainer service: reads the experience stream, makes optimizer steps, announces weights, commits checkpoints.

The checkpoint is the commit point. On any start the trainer goes back to the newest checkpoint and reads the stream
from its ledger, so what was trained after that checkpoint is trained again and counted once.
"""

import asyncio
import contextlib
import time
from pathlib import Path

import structlog

from bus.errors import RevisionConflict
from bus.subjects import Stream
from schemas.state import IncarnationTaken, MemberSeen, TrainProgress
from schemas.weights import WeightsAnnounced, WeightVersion
from services.config.tree import RunConfig
from services.runtime.context import Context
from services.runtime.keys import INCARNATION, MEMBERS, TRAIN
from services.trainer import checkpoints
from services.trainer.algorithms.advantages import advantage
from services.trainer.backends.port import Backend
from services.trainer.batches import described, sequences
from services.trainer.intake import Batch, Intake
from services.trainer.ledger import Ledger
from services.trainer.weights import WeightsDirectory

log = structlog.get_logger()

READ_AHEAD_BATCHES = 4
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


class Superseded(Exception):
    """Another trainer has begun this run; this one must not announce or commit anything more."""


class Trainer:
    """One incarnation of the trainer."""

    def __init__(self, context: Context, backend: Backend) -> None:
        self._context = context
        self._config = context.config
        self._bus = context.bus
        self._backend = backend
        self._advantage = advantage(_advantage_name(self._config), **(self._config.algorithm.advantage_fn_args or {}))
        self._weights = WeightsDirectory(context.bus.run, self._config.run_dir, self._config.synchronizer.keep_versions)
        self._ledger = Ledger()
        self._intake = Intake(self._ledger, self._config.train_batch_size, context.bus.run)
        self._incarnation = 0
        self._checkpoint_step = 0
        self._announced: WeightsAnnounced | None = None
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._reward: float | None = None
        self._staleness: float | None = None
        self._is_finished = False

    async def run(self) -> None:
        """Train until the run is over, or until asked to stop, with a checkpoint at the end either way."""
        self._incarnation = await self._take_incarnation()
        with self._context.activities.doing("starting"):
            await self._resume()
        await self._announce(time.time(), is_final=False)
        helpers = [asyncio.create_task(self._read()), asyncio.create_task(self._publish_progress())]
        try:
            await self._train_all(helpers)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await asyncio.to_thread(self._backend.stop)

    async def _train_all(self, helpers: list[asyncio.Task[None]]) -> None:
        while not self._context.stopping.is_set():
            batch = await self._next_batch(helpers)
            if batch is None:
                break
            await self._step(batch)
        is_over = not self._context.stopping.is_set()
        if self._checkpoint_step < self._ledger.step or is_over:
            await self._save_checkpoint()
        if is_over:
            await self._announce(time.time(), is_final=True)
            self._is_finished = True
            await self._put_progress()
            log.info("training_finished", step=self._ledger.step)
            await self._context.report(self._ledger.step)
            await self._until_finished()

    async def _take_incarnation(self) -> int:
        while True:
            held = await self._bus.get(INCARNATION)
            before = held.message.incarnation if held and isinstance(held.message, IncarnationTaken) else 0
            taken = IncarnationTaken(incarnation=before + 1, trainer=self._context.member.name, taken_at=time.time())
            with contextlib.suppress(RevisionConflict):
                await self._bus.swap(INCARNATION, taken, held.revision if held else 0)
                return taken.incarnation

    async def _assert_not_superseded(self) -> None:
        held = await self._bus.get(INCARNATION)
        if held and isinstance(held.message, IncarnationTaken) and held.message.incarnation > self._incarnation:
            raise Superseded(
                f"trainer incarnation {held.message.incarnation} ({held.message.trainer}) has begun; "
                f"this is {self._incarnation}"
            )

    async def _resume(self) -> None:
        found = await asyncio.to_thread(checkpoints.checkpoints, self._config.run_dir)
        newest = found[-1] if found and self._config.continue_from_checkpoint else None
        if newest is not None:
            self._ledger = newest.ledger()
            self._checkpoint_step = newest.step
            self._intake = Intake(self._ledger, self._config.train_batch_size, self._bus.run)
            log.info("trainer_resuming", step=newest.step, sequence=self._ledger.sequences.floor)
        await asyncio.to_thread(self._backend.start, newest.directory if newest else None)

    async def _read(self) -> None:
        """Offer the stream to the intake, oldest first, a few batches ahead of training."""
        async for delivery in self._bus.read(Stream.EXPERIENCES, start=self._ledger.sequences.floor):
            self._intake.offer(delivery.sequence, delivery.message)
            self._changed.set()
            if self._intake.ready >= READ_AHEAD_BATCHES:
                self._taken.clear()
                await self._taken.wait()

    async def _next_batch(self, helpers: list[asyncio.Task[None]]) -> Batch | None:
        """The next full batch; the rest when all tasks are answered; None when nothing is left to train."""
        self._context.member.state = "waiting"
        while self._intake.ready == 0:
            if self._is_at_last_step() or self._context.stopping.is_set():
                return None
            if await self._is_all_answered():
                rest = self._intake.take()
                return rest if rest.entries else None
            self._changed.clear()
            waiting = asyncio.create_task(self._changed.wait())
            await asyncio.wait([waiting, *helpers], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for helper in helpers:
                if helper.done():
                    helper.result()
        self._taken.set()
        return None if self._is_at_last_step() else self._intake.take()

    def _is_at_last_step(self) -> bool:
        total = self._config.total_steps
        return total is not None and self._ledger.step >= total

    async def _is_all_answered(self) -> bool:
        progress = await self._context.release()
        total = progress.total_tasks if progress and progress.phase != "releasing" else None
        return total is not None and self._intake.answered.floor >= total and self._intake.ready == 0

    async def _step(self, batch: Batch) -> None:
        """One optimizer step, then the ledger, the weights, the checkpoint, the metrics: in this order."""
        step = self._ledger.step + 1
        self._context.member.state = f"training step {step}"
        started = time.monotonic()
        metrics = await self._update(batch, step)
        ended_at = time.time()
        metrics["time/train_step"] = time.monotonic() - started
        self._intake.commit(batch, step)
        if step % self._sync_interval() == 0:
            await self._put_progress()
            metrics["time/sync_weight"] = await self._announce(ended_at, is_final=False)
        if self._config.trainer.save_interval > 0 and step % self._config.trainer.save_interval == 0:
            metrics["time/save_checkpoint"] = await self._save_checkpoint()
        metrics["time/step"] = time.monotonic() - started
        await self._context.report(step, metrics)
        log.info("step_trained", step=step, reward=metrics.get("critic/rewards/mean"), seconds=metrics["time/step"])

    async def _update(self, batch: Batch, step: int) -> dict[str, float]:
        if not batch.groups:
            log.warning("step_without_experiences", step=step, reason="every task of it was abandoned or malformed")
            return {}
        prepared = sequences(batch, self._advantage)
        metrics = described(batch, prepared, step)
        self._reward = metrics["critic/rewards/mean"]
        self._staleness = metrics["sample/model_version_drift/mean"]
        started = time.monotonic()
        with self._context.activities.doing("training"):
            metrics |= await asyncio.to_thread(self._backend.train, prepared)
        seconds = time.monotonic() - started
        tokens = float(sum(len(sequence.tokens) for sequence in prepared))
        return metrics | {
            "time/update_actor": seconds,
            "global_seqlen/mean": tokens / len(prepared),
            "perf/total_num_tokens": tokens,
            "perf/throughput": tokens / seconds,
            "timing_per_token_ms/update_actor": 1000 * seconds / tokens,
        }

    async def _announce(self, step_ended_at: float, is_final: bool) -> float:
        """Write the weights of the present step and announce them. Returns the seconds that it took."""
        started = time.monotonic()
        await self._assert_not_superseded()
        version = WeightVersion(incarnation=self._incarnation, version=self._ledger.step)
        dtype = _weights_dtype(self._config)
        with self._context.activities.doing("syncing"):
            if self._announced is None or self._announced.weights != version:
                self._announced = await asyncio.to_thread(
                    self._weights.write,
                    version,
                    lambda directory: self._backend.write_weights(directory, dtype),
                    dtype,
                    step_ended_at,
                )
            self._announced = self._announced.model_copy(update={"is_final": is_final})
            await self._bus.publish(self._announced)
        self._context.member.weights = version
        await self._put_progress()
        await self._prune_weights(version)
        seconds = time.monotonic() - started
        log.info("weights_announced", version=version.version, incarnation=version.incarnation, seconds=seconds)
        return seconds

    async def _prune_weights(self, newest: WeightVersion) -> None:
        members = [entry.message for entry in await self._bus.entries(MEMBERS)]
        needed = [v for member in members if isinstance(member, MemberSeen) for v in member.versions_needed]
        in_use = [member.weights.version for member in members if isinstance(member, MemberSeen)]
        await asyncio.to_thread(self._weights.prune, newest, [*needed, *in_use])

    async def _save_checkpoint(self) -> float:
        started = time.monotonic()
        await self._assert_not_superseded()
        with self._context.activities.doing("syncing"):
            await asyncio.to_thread(self._commit_checkpoint, self._config.run_dir)
        self._checkpoint_step = self._ledger.step
        await self._put_progress()
        await self._free_stream()
        return time.monotonic() - started

    async def _free_stream(self) -> None:
        """Free what the checkpoint just committed holds, once the stream is more than half full."""
        held = await self._bus.state(Stream.EXPERIENCES)
        if held.limit_bytes is not None and held.size_bytes > held.limit_bytes / 2:
            await self._bus.purge(Stream.EXPERIENCES, up_to=self._ledger.sequences.floor)
            log.info("experiences_freed", below_sequence=self._ledger.sequences.floor, held_bytes=held.size_bytes)

    def _commit_checkpoint(self, run_dir: Path) -> None:
        checkpoints.commit(run_dir, self._ledger, self._backend.write_checkpoint)
        checkpoints.prune(run_dir, self._config.trainer.max_checkpoints_to_keep)

    async def _publish_progress(self) -> None:
        """Say how far the stream is answered, as soon as that changes: the pace waits for it."""
        said = -1
        while True:
            floor = self._intake.answered.floor
            if floor != said:
                await self._put_progress()
                said = floor
            await asyncio.sleep(0.1)

    async def _put_progress(self) -> None:
        answered = self._intake.answered
        await self._bus.put(
            TRAIN,
            TrainProgress(
                weights=self._announced.weights if self._announced else WeightVersion(incarnation=self._incarnation),
                step=self._ledger.step,
                total_steps=self._config.total_steps,
                answered_floor=answered.floor,
                answered=len(answered),
                checkpoint_step=self._checkpoint_step,
                counts=self._ledger.counts,
                reward=self._reward,
                staleness=self._staleness,
                sequence_floor=self._ledger.sequences.floor,
                is_finished=self._is_finished,
                updated_at=time.time(),
            ),
        )

    async def _until_finished(self) -> None:
        """Stay a member until the run is declared finished, so that nobody believes the trainer dead."""
        self._context.member.state = "finished"
        while not self._context.stopping.is_set() and await self._context.phase() != "finished":
            await self._context.wait(0.5)

    def _sync_interval(self) -> int:
        synchronizer = self._config.synchronizer
        return synchronizer.trainer_sync_interval or synchronizer.sync_interval


def _advantage_name(config: RunConfig) -> str:
    return config.algorithm.advantage_fn or config.algorithm_type.advantage_fn


def _weights_dtype(config: RunConfig) -> str:
    """The precision of written weights: as set, else that of the engines that load them."""
    chosen = config.trainer.weights_dtype
    return DTYPES[chosen] if chosen else config.explorer.rollout_model.dtype
