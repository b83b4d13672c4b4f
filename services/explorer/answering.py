"""One task in an explorer's hands: sampled, published as a group, and acknowledged last, so that redelivery repeats
whatever failed before."""

import asyncio
import time
from collections.abc import Sequence

import structlog

from bus.errors import BusError
from bus.port import Delivery
from bus.subjects import Stream
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskReleased
from services.explorer.attempts import Attempts, Tried
from services.explorer.patience import Patience
from services.explorer.weights import Adoption
from services.inference.auxiliary import Auxiliaries
from services.inference.engine import Engine, EngineDied
from services.inference.tokenizers import fingerprint
from services.rollout.baselines import answer_beside_greedy
from services.rollout.errors import TaskFailed, UnknownName
from services.rollout.policy import NO_AUXILIARIES, Policy, prompting_of, sampling_of
from services.rollout.runner import answer
from services.rollout.workflows import workflow_named
from services.runtime.context import Context

log = structlog.get_logger()

RETRY_DELAY_S = 1.0


class Answering:
    """Answers tasks on one engine. Each call is one delivery of one task."""

    def __init__(
        self, context: Context, engine: Engine, adoption: Adoption, auxiliary: Auxiliaries = NO_AUXILIARIES
    ) -> None:
        self._context = context
        self._config = context.config
        self._engine = engine
        self._adoption = adoption
        self._attempts = Attempts(context.bus)
        self._patience = Patience(context.config.explorer.dynamic_timeout, context.config.explorer.max_timeout)
        self._tokenizer = ""
        is_compared = context.config.algorithm.advantage_fn == "remax"
        self._answered = answer_beside_greedy if is_compared else answer
        self._prompting = prompting_of(context.config)
        self._auxiliary = auxiliary

    async def tried(self, delivery: Delivery) -> Tried:
        """How often the task of a delivery was tried before."""
        task = delivery.message
        return await self._attempts.tried(delivery, task) if isinstance(task, TaskReleased) else Tried()

    async def hand_back(self, delivery: Delivery) -> None:
        """Give the task to whoever pulls next. It does not count as an attempt."""
        if isinstance(delivery.message, TaskReleased):
            await self._attempts.excuse(delivery.message)
        await delivery.nak()

    async def handle(self, delivery: Delivery, attempt: int) -> None:
        """Answer the task, or hand it back. A task that has failed too often is abandoned and quarantined."""
        task = delivery.message
        if not isinstance(task, TaskReleased):
            return
        keeping = asyncio.create_task(self._keep(delivery))
        try:
            await self._answer_or_abandon(delivery, task, attempt)
        except asyncio.CancelledError:
            await self._leave(delivery, task)
            raise
        except EngineDied:
            await delivery.nak()
            raise
        except BusError as error:
            log.warning("task_left_to_its_lease", task=task.task.task_id, error=str(error))
        finally:
            keeping.cancel()

    async def _leave(self, delivery: Delivery, task: TaskReleased) -> None:
        try:
            await self.hand_back(delivery)
        except BusError as error:
            log.warning("task_left_to_its_lease", task=task.task.task_id, error=str(error))

    async def _answer_or_abandon(self, delivery: Delivery, task: TaskReleased, attempt: int) -> None:
        most = self._config.synchronizer.max_deliver
        if attempt > most:
            await self._abandon(delivery, task, attempt - 1, f"no explorer has answered it in {most} deliveries")
            return
        try:
            await self._answer(delivery, task, attempt)
        except (TaskFailed, UnknownName) as error:
            if attempt >= most:
                await self._abandon(delivery, task, attempt, str(error))
                return
            log.warning("task_failed", task=task.task.task_id, attempt=attempt, error=str(error))
            await self._attempts.fail(task)
            await delivery.nak(RETRY_DELAY_S)

    async def _answer(self, delivery: Delivery, task: TaskReleased, attempt: int) -> None:
        await self._adoption.satisfied(task.floor)
        started_at = time.time()
        with self._context.activities.doing("sampling"):
            experiences = await self._answered(
                task,
                workflow_named(task.workflow),
                Policy(self._engine, sampling_of(task.rollout_args), self._prompting, self._auxiliary),
                max_retry_times=self._config.explorer.max_retry_times,
                max_timeout_s=self._patience.limit_s(task.task.batch, attempt),
            )
        group = self._group(task, experiences, attempt, started_at)
        self._patience.note(task.task.batch, group.finished_at - started_at)
        stored = await self._context.bus.publish(group)
        await delivery.ack()
        await self._attempts.forget(delivery, task)
        if stored.is_duplicate:
            log.info("answer_was_there_already", task=task.task.task_id, sequence=stored.sequence)
            return
        await self._report(task, group)

    def _group(
        self, task: TaskReleased, experiences: Sequence[Experience], attempt: int, started_at: float
    ) -> GroupSampled:
        weights = self._engine.weights
        return GroupSampled(
            run=task.run,
            task=task.task,
            repeat_times=task.repeat_times,
            explorer=self._context.member.name,
            incarnation=weights.incarnation if weights else 0,
            experiences=tuple(experiences),
            attempt=attempt,
            started_at=started_at,
            finished_at=time.time(),
            tokenizer=self._tokenizer_of_engine(),
            retry=task.retry,
        )

    def _tokenizer_of_engine(self) -> str:
        self._tokenizer = self._tokenizer or fingerprint(self._engine.tokenizer)
        return self._tokenizer

    async def _abandon(self, delivery: Delivery, task: TaskReleased, attempts: int, error: str) -> None:
        """Quarantine the task, and say in the experience stream that its answer will not come."""
        await self._context.bus.quarantine(delivery, Stream.TASKS, error)
        await self._context.bus.publish(
            TaskAbandoned(
                run=task.run,
                task=task.task,
                repeat_times=task.repeat_times,
                explorer=self._context.member.name,
                attempts=attempts,
                error=error[:2000],
                abandoned_at=time.time(),
                retry=task.retry,
            )
        )
        await delivery.ack()
        await self._attempts.forget(delivery, task)
        log.error("task_abandoned", task=task.task.task_id, attempts=attempts, error=error)

    async def _keep(self, delivery: Delivery) -> None:
        """Renew the task's lease while it is worked on."""
        while True:
            await asyncio.sleep(self._config.synchronizer.task_lease / 3)
            try:
                await delivery.in_progress()
            except BusError as error:
                log.warning("lease_not_renewed", error=str(error))

    async def _report(self, task: TaskReleased, group: GroupSampled) -> None:
        experiences = group.experiences
        samples = {"rollout/reward": [experience.reward for experience in experiences]}
        samples["rollout/response_length"] = [float(experience.response_length) for experience in experiences]
        for name in sorted({name for experience in experiences for name in experience.metrics}):
            samples[f"rollout/{name}"] = [e.metrics[name] for e in experiences if name in e.metrics]
        seconds = group.finished_at - group.started_at
        values = {
            "rollout/model_version": float(max(int(e.token_versions.max()) for e in experiences)),
            "rollout/finished_task_count:sum": 1.0,
            "rollout/sampled_tokens:sum": float(sum(e.response_length for e in experiences)),
            "rollout/time/task_execution": seconds,
        }
        await self._context.report(task.task.batch + 1, values, samples, parts=task.batch_tasks)
