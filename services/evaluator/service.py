"""The evaluator service: follows weight announcements and judges those that are due, one after the other."""

import asyncio
import time
from collections import deque
from pathlib import Path

import structlog

from bus.subjects import Stream
from schemas.reports import EvaluationReported
from schemas.weights import WeightsAnnounced, WeightVersion
from services.evaluator.due import Schedule
from services.evaluator.judging import Judgement, judge
from services.inference.announcements import announcements
from services.inference.auxiliary import Auxiliaries
from services.inference.engine import Engine
from services.inference.weights import WeightsUnusable, verified
from services.rollout.policy import NO_AUXILIARIES
from services.rollout.tasksets import Taskset, open_taskset
from services.runtime.context import Context

log = structlog.get_logger()


class Evaluator:
    """One engine that holds the version that it judges, and auxiliary models that start when a workflow asks them."""

    def __init__(self, context: Context, engine: Engine, auxiliary: Auxiliaries = NO_AUXILIARIES) -> None:
        self._context = context
        self._config = context.config
        self._engine = engine
        self._auxiliary = auxiliary
        self._schedule = Schedule(self._config.eval_interval, self._config.explorer.eval_on_startup)
        self._pending: deque[WeightsAnnounced] = deque()
        self._arrived = asyncio.Event()
        self._seen = WeightVersion()
        self._tasksets: list[Taskset] = []
        self._known: set[tuple[int, int]] = set()

    async def run(self) -> None:
        """Judge until the run is finished, or until asked to leave."""
        with self._context.activities.doing("starting"):
            await self._open_tasksets()
            await self._engine.start()
        self._known = await self._reported()
        following = asyncio.create_task(self._follow())
        try:
            while not self._context.stopping.is_set():
                if self._pending:
                    await self._judge_announced(self._pending[0])
                    self._pending.popleft()
                    self._say_pending()
                elif await self._context.phase() == "finished":
                    if not await self._catch_up():
                        return
                else:
                    await self._wait(following)
        finally:
            following.cancel()
            await self._engine.stop()
            await self._auxiliary.stop()

    async def bench(self) -> None:
        """Judge weights that lie in the run's directory, without a trainer: all versions, or the newest alone."""
        await self._open_tasksets()
        await self._engine.start()
        try:
            for version, directory in self._kept_versions():
                await self._judge(WeightVersion(version=version), str(directory), prefix="bench")
        finally:
            await self._engine.stop()
            await self._auxiliary.stop()

    async def _open_tasksets(self) -> None:
        self._tasksets = [await asyncio.to_thread(open_taskset, settings) for settings in self._config.eval_tasksets]

    async def _reported(self) -> set[tuple[int, int]]:
        """Incarnation and version of what has been judged on every taskset, in an earlier life or by another."""
        judged: dict[tuple[int, int], set[str]] = {}
        async for delivery in self._context.bus.read(Stream.METRICS, follow=False):
            report = delivery.message
            if isinstance(report, EvaluationReported):
                judged.setdefault((report.weights.incarnation, report.weights.version), set()).add(report.taskset)
        wanted = {taskset.name for taskset in self._tasksets}
        return {key for key, tasksets in judged.items() if tasksets >= wanted}

    async def _follow(self) -> None:
        async for announced in announcements(self._context.bus, start=1):
            self._consider(announced)
            self._arrived.set()

    async def _catch_up(self) -> bool:
        """Take up what was announced before the run was finished. Whether that leaves anything to judge."""
        async for delivery in self._context.bus.read(Stream.WEIGHTS, follow=False):
            if isinstance(delivery.message, WeightsAnnounced):
                self._consider(delivery.message)
        return bool(self._pending)

    def _consider(self, announced: WeightsAnnounced) -> None:
        weights = announced.weights
        key = (weights.incarnation, weights.version)
        if self._schedule.is_due(announced) and key not in self._known:
            self._known.add(key)
            self._pending.append(announced)
        self._seen = weights
        self._say_pending()

    def _say_pending(self) -> None:
        """Heartbeats name the versions that must not be removed yet, and the newest that has been dealt with."""
        member = self._context.member
        member.versions_needed = tuple(announced.weights.version for announced in self._pending)
        member.state = f"judging version {member.versions_needed[0]}" if self._pending else "waiting for weights"
        if not self._pending:
            member.weights = self._seen

    async def _wait(self, following: asyncio.Task[None]) -> None:
        self._arrived.clear()
        arriving = asyncio.create_task(self._arrived.wait())
        await asyncio.wait([arriving, following], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        arriving.cancel()
        if following.done():
            following.result()

    async def _judge_announced(self, announced: WeightsAnnounced) -> None:
        try:
            directory = await asyncio.to_thread(verified, announced)
        except WeightsUnusable as error:
            log.warning("version_not_judged", version=announced.weights.version, error=str(error))
            return
        await self._judge(announced.weights, str(directory), prefix="eval")

    async def _judge(self, weights: WeightVersion, directory: str, prefix: str) -> None:
        with self._context.activities.doing("syncing"):
            await self._engine.load(directory, weights)
        for taskset in self._tasksets:
            with self._context.activities.doing("sampling"):
                judgement = await judge(self._config, self._engine, taskset, self._auxiliary)
            await self._publish(weights, judgement, prefix)

    async def _publish(self, weights: WeightVersion, judgement: Judgement, prefix: str) -> None:
        report = EvaluationReported(
            run=self._context.bus.run,
            evaluator=self._context.member.name,
            weights=weights,
            taskset=judgement.taskset,
            tasks=judgement.tasks,
            metrics=judgement.metrics,
            duration_s=judgement.duration_s,
            at=time.time(),
        )
        await self._context.bus.publish(report)
        values = {f"{prefix}/{judgement.taskset}/{name}": value for name, value in judgement.metrics.items()}
        values["time/eval"] = judgement.duration_s
        await self._context.report(weights.version, values)
        log.info("version_judged", version=weights.version, taskset=judgement.taskset, **judgement.metrics)

    def _kept_versions(self) -> list[tuple[int, Path]]:
        """The versions in the run's directory, oldest first; the starting model as version 0 when none is kept."""
        root = self._config.run_dir / "weights"
        found = sorted((int(path.name.removeprefix("version_").split(".")[0]), path) for path in root.glob("version_*"))
        if not found:
            return [(0, Path(self._config.model.model_path))]
        return found[-1:] if self._config.explorer.bench_on_latest_checkpoint else found
