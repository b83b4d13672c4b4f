"""Trainer, synchronizer and explorers as single steps, made of the parts that the services are made of.

Invariant: what decides about loss and repetition is the shipped code: bus, intake, ledger, incarnation, checkpoints,
progress, recovery. Only the loops around it are here, so that a test can stop between any two steps.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from bus.errors import PublishTimeout
from bus.port import Bus, Delivery
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.state import TrainProgress
from schemas.tasks import TaskReleased
from schemas.weights import WeightsAnnounced, WeightVersion
from services.config.reuse_rule import reuse_rule
from services.config.tree import RunConfig
from services.runtime.context import Context
from services.runtime.keys import TRAIN
from services.runtime.member import Member
from services.synchronizer.pace import Facts, waiting_for
from services.synchronizer.plan import plan_of
from services.synchronizer.progress import Progress
from services.synchronizer.recovery import Recovery, judged, unanswered
from services.synchronizer.refill import recorded, tasks_made_up
from services.trainer import checkpoints
from services.trainer.announcing import Announcer
from services.trainer.backends.fake import FakeBackend
from services.trainer.checks import Limits, fault
from services.trainer.committing import Committer, newest_on_disk
from services.trainer.incarnation import Incarnation, begin
from services.trainer.intake import Intake
from services.trainer.learning import Learner
from services.trainer.ledger import Ledger
from services.trainer.pipeline.build import pipeline_of
from services.trainer.reuse.restoring import restored
from services.trainer.source import OwnStream


class SteppedTrainer:
    """One incarnation of the trainer, which acts only when it is told to."""

    incarnation: Incarnation
    ledger: Ledger

    def __init__(self, config: RunConfig, bus: Bus, name: str) -> None:
        self._context = Context(config, bus, Member("trainer", name))
        self._config = config
        self._bus = bus
        self._backend = FakeBackend(seconds_per_step=0.0)
        self._learner = Learner(config, self._backend)
        self._read_to = 0

    async def begin(self) -> "SteppedTrainer":
        config, bus = self._config, self._bus
        on_disk = await asyncio.to_thread(newest_on_disk, config.run_dir)
        self.incarnation = await begin(bus, self._context.member.name, on_disk)
        self._committer = Committer(self._context, self._learner, self.incarnation)
        self._announcer = Announcer(self._context, self._backend, self.incarnation)
        resumed = await self._committer.resume()
        self.ledger = resumed.ledger
        pipeline, reuse = pipeline_of(config), reuse_rule(config)
        self._intake = Intake(self.ledger, config.fresh_batch_size, bus.run, pipeline=pipeline, reuse=reuse)
        await restored(OwnStream(self._context), self._intake)
        self._read_to = self.ledger.sequences.floor - 1
        self._learner.start(resumed.directory)
        await self.announce()
        return self

    @property
    def step(self) -> int:
        return self.ledger.step

    @property
    def is_through(self) -> bool:
        """Whether all steps that are wanted have been made."""
        return self.step >= (self._config.total_steps or 0)

    async def read(self) -> None:
        """Take in all of the stream that is there."""
        limits = Limits(max_tokens=self._config.max_model_len)
        async for delivery in self._bus.read(Stream.EXPERIENCES, start=self._read_to + 1, follow=False):
            words = fault(delivery.message, limits, self._intake.steps)
            if words is not None:
                await self._bus.quarantine(delivery, Stream.EXPERIENCES, words)
            self._intake.offer(delivery.sequence, None if words else delivery.message)
            self._read_to = delivery.sequence
        await self.say()

    async def train(self) -> bool:
        """One optimizer step with its announcement, where a batch is ready."""
        if self._intake.ready == 0 or self.is_through:
            return False
        await self.incarnation.assert_current()
        batch = self._intake.take()
        if batch.groups:
            self._learner.learn(batch, self.step + 1)
        self._intake.commit(batch, self.step + 1)
        await self.announce()
        return True

    async def announce(self) -> None:
        await self._announcer.announce(self.step, time.time())
        await self.say()

    async def save(self) -> None:
        await self._committer.save(self.ledger)
        await self.say()

    async def why_full(self) -> str:
        """What it tells of a full stream; empty where the stream is not, or a checkpoint would make room."""
        if await self._committer.makes_room(self.ledger):
            return ""
        return await self._committer.why_full(self.ledger, self._intake.gathered)

    async def die_in_commit(self, after_rename: bool) -> None:
        """A process that ends by itself in the middle of a commit: nothing is tidied up, nobody is told."""
        await self.incarnation.assert_current()
        self.ledger.run = self._bus.run
        self.ledger.incarnation, self.ledger.lineage = self.incarnation.number, self.incarnation.lineage
        child = os.fork()
        if child == 0:
            self._commit_and_end(after_rename)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 9, "the commit failed before its process was to end"

    def _commit_and_end(self, after_rename: bool) -> NoReturn:
        def write(directory: Path) -> None:
            self._learner.write_checkpoint(directory)
            if not after_rename:
                os._exit(9)

        try:
            checkpoints.commit(self._config.run_dir, self.ledger, write)
        finally:
            os._exit(9)

    async def say(self) -> None:
        answered = self._intake.answered
        await self._bus.put(
            TRAIN,
            TrainProgress(
                weights=self._announcer.weights,
                step=self.step,
                answered_floor=answered.floor,
                answered_above=tuple(sorted(answered.above)),
                answered=len(answered),
                read_sequence=self._read_to,
                batches_closed=self._intake.steps,
                gathered=self._intake.gathered,
            ),
        )


class Term:
    """What `Progress` asks of a lease. Whether another leads is found out by compare-and-set alone."""

    is_held = True

    def __init__(self, term: int) -> None:
        self.term = term


class SteppedSynchronizer:
    """The leader of one term."""

    def __init__(self, config: RunConfig, bus: Bus, term: int) -> None:
        self._bus = bus
        self._plan = plan_of(config)
        self._term = term
        self._group = config.repeat_times
        self._most = config.synchronizer.max_deliver
        self._progress = Progress(bus, Term(term))  # type: ignore[arg-type]
        self._recovery = Recovery(bus, 0)

    async def is_done(self) -> bool:
        """Whether no task is left to release."""
        return self._plan.is_through(self._progress.now.released, await self._train())

    async def take_over(self) -> "SteppedSynchronizer":
        await self._progress.take_over()
        self._recovery = Recovery(self._bus, (await self._bus.state(Stream.TASKS)).last)
        return self

    async def release(self, dies_before_publishing: bool = False) -> bool:
        """The next batch, where the pace allows it."""
        newest, train, now = await self._newest(), await self._train(), self._progress.now
        waiting = unanswered(now.released, train)
        made_up = tasks_made_up(now.released, len(waiting), train, self._plan.config.fresh_batch_size, self._group)
        ordinals = self._plan.next_batch(now.released, made_up)
        batch = (now.released - made_up) // self._plan.batch_size
        oldest = min((self._plan.batch_of(each, now.refills) for each in waiting), default=batch)
        if newest is None or not ordinals:
            await self._progress.save()
            return False
        if waiting_for(batch, self._plan.pace, Facts(newest.version, train.step, oldest, 0.0)) is not None:
            await self._progress.save()
            return False
        await self._progress.save(
            released=ordinals.stop,
            batches=self._plan.batches_of(ordinals.stop - made_up),
            refills=recorded(now.refills, ordinals.start, made_up, train.answered_floor),
        )
        if not dies_before_publishing:
            await self._publish(list(ordinals), newest, 0)
        return True

    async def recover(self) -> None:
        """Two looks, as the service takes them a second apart: suspects, then those that are lost for certain."""
        for _ in range(2):
            ordinals, newest = await self._recovery.lost(self._progress.now.released, await self._train()), None
            newest = await self._newest()
            if not ordinals or newest is None:
                continue
            verdict = judged(ordinals, self._progress.now.reissued, self._most, self._recovery.sequences)
            await self._progress.save(reissued=verdict.reissued)
            for ordinal in (*verdict.again, *verdict.given_up):
                await self._publish([ordinal], newest, verdict.retry(ordinal))

    async def _publish(self, ordinals: list[int], newest: WeightVersion, retry: int) -> None:
        refills = self._progress.now.refills
        tasks = self._plan.released_tasks(ordinals, newest.incarnation, self._term, retry, refills)
        self._recovery.published(tasks, await self._bus.publish_all(tasks))

    async def _newest(self) -> WeightVersion | None:
        found = await self._bus.last(Stream.WEIGHTS)
        return found.message.weights if found and isinstance(found.message, WeightsAnnounced) else None

    async def _train(self) -> TrainProgress:
        found = await self._bus.get(TRAIN)
        return (
            found.message
            if found and isinstance(found.message, TrainProgress)
            else TrainProgress(weights=WeightVersion(), step=0)
        )


class SteppedExplorer:
    """All explorers: the tasks that are in somebody's hands, and those that were taken from hands that may wake."""

    def __init__(self, bus: Bus, sampled: Callable[[TaskReleased, WeightVersion], GroupSampled]) -> None:
        self._bus = bus
        self._sampled = sampled
        self.hands: list[Delivery] = []
        self.late: list[GroupSampled] = []

    async def pull(self, most: int) -> None:
        queue = await self._bus.queue()
        self.hands += [each for each in await queue.pull(most, 0.05) if isinstance(each.message, TaskReleased)]

    async def answer(self, number: int, weights: WeightVersion, dies_before_ack: bool = False) -> None:
        delivery = self.hands.pop(number % len(self.hands))
        group = self._sampled(_task(delivery), weights)
        await self._bus.publish(group)
        if dies_before_ack:
            await delivery.nak()
            self.late.append(group)
        else:
            await _acknowledged(delivery)

    async def abandon(self, number: int) -> None:
        delivery = self.hands.pop(number % len(self.hands))
        task = _task(delivery)
        await self._bus.quarantine(delivery, Stream.TASKS, "it would not")
        await self._bus.publish(
            TaskAbandoned(
                run=task.run,
                task=task.task,
                repeat_times=task.repeat_times,
                explorer="stepped",
                attempts=1,
                error="it would not",
                retry=task.retry,
            )
        )
        await _acknowledged(delivery)

    async def die(self, weights: WeightVersion) -> None:
        """Everything in hand is delivered again; what was sampled meanwhile may still be published one day."""
        for delivery in self.hands:
            self.late.append(self._sampled(_task(delivery), weights))
            await delivery.nak()
        self.hands = []

    async def wake(self, number: int, message_id: str | None) -> None:
        """Publish what was sampled before: under its own id, or as if the server had forgotten that id."""
        await self._bus.publish(self.late.pop(number % len(self.late)), message_id=message_id)


class Sampler:
    """Answers of one history: another one for each call, and the same ones in the same order for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, task: TaskReleased, weights: WeightVersion) -> GroupSampled:
        """An answer to a task under certain weights. All its rewards are 1, or all 0, or the first alone is 0."""
        first, others = [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0)][self._random.integers(3)]
        positions = range(task.repeat_times)
        return GroupSampled(
            run=task.run,
            task=task.task,
            repeat_times=task.repeat_times,
            explorer="stepped",
            incarnation=weights.incarnation,
            experiences=tuple(self._experience(n, others if n else first, weights.version) for n in positions),
            retry=task.retry,
        )

    def _experience(self, position: int, reward: float, version: int) -> Experience:
        return Experience(
            position=position,
            tokens=self._random.integers(0, 256, 5, dtype=np.int32),
            prompt_length=2,
            action_mask=np.ones(3, np.uint8),
            logprobs=np.full(3, -0.5, np.float32),
            token_versions=np.full(3, version, np.int32),
            reward=reward,
        )


async def _acknowledged(delivery: Delivery) -> None:
    """Where a machine is so slow that the lease has run out, there is no word: the task comes again."""
    with suppress(PublishTimeout):
        await delivery.ack()


def _task(delivery: Delivery) -> TaskReleased:
    assert isinstance(delivery.message, TaskReleased)
    return delivery.message
