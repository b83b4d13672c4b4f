"""A soak: one run of separate processes around one server, to which a seeded sequence of acts is done until it ends.

Invariant: nothing here helps the run. Whatever was killed, frozen or cut off is started, woken or healed as a process
supervisor and a network would, and no earlier than the acts say.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from acts import Act, acts, varied
from fleet import Fleet, Service
from garbage import shapeless, spoilt
from independent import IndependentReader, Observed

SERVICES = (
    ("synchronizer", "synchronizer"),
    ("synchronizer", "synchronizer-standby"),
    ("trainer", "trainer"),
    ("explorer", "explorer-a"),
    ("explorer", "explorer-b"),
    ("monitor", "monitor"),
)
KEYS = ("release", "train", "incarnation", "lease.synchronizer", "term.synchronizer", "declared")
MOST_EXPLORERS = 4
CHECKPOINT_PATIENCE_S = 6.0


class Hung(AssertionError):
    """The run does not go on, though nothing is done to it any more."""


class Soak:
    """One run under the acts of one seed. `done` is the record of what was done, in order."""

    def __init__(self, root: Path, config: dict[str, Any], seed: int, count: int) -> None:
        for section, settings in varied(seed).items():
            config[section] |= settings
        self.seed = seed
        self.config = config
        self.plan = acts(seed, count)
        self.fleet = Fleet(root, config)
        self.run = f"{config['project']}/{config['name']}"
        self.run_dir = Path(config["checkpoint_root_dir"]) / config["project"] / config["name"]
        self.reader: IndependentReader
        self.done: list[str] = []
        self.counted: Counter[str] = Counter()
        self._draw = random.Random(f"garbage of {seed}")
        self._lasting: set[asyncio.Task[None]] = set()
        self._started = time.monotonic()
        self._joined = 0

    async def start(self) -> None:
        await self.fleet.start()
        self.reader = IndependentReader(self.fleet.server.url, self.run)
        await self.reader.start()
        for kind, name in SERVICES:
            await self.fleet.add(kind, name)

    async def stop(self) -> None:
        for task in self._lasting:
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)
        await self.reader.stop()
        await self.fleet.stop()

    async def suffer(self) -> None:
        """Do all acts, or as many as there is time for before the run is finished."""
        await self._until_begun()
        for act in self.plan:
            await asyncio.sleep(act.after_s)
            if (await self._progress())[2] == "finished":
                break
            await self._do(act)
        if self._lasting:
            await asyncio.gather(*self._lasting)

    async def end(self, patience_s: float) -> Observed:
        """What the run has left, once it is over by itself.

        Raises:
            Hung: it made no headway for `patience_s`, or a service did not end.
        """
        self.note("nothing more is done")
        seen, since = (0, 0, ""), time.monotonic()
        while seen[2] != "finished":
            now = await self._progress()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > patience_s:
                raise Hung(f"no headway in {patience_s} s at (sequence, step, phase) {seen}\n{self.account()}")
            await asyncio.sleep(0.1)
        left = await self.fleet.ended(patience_s)
        if left:
            raise Hung(f"{[each.name for each in left]} did not end after the run\n{self.account()}")
        return await self.reader.finish(self.run_dir)

    def note(self, words: str) -> None:
        self.done.append(f"{time.monotonic() - self._started:7.2f} s  {words}")

    def account(self) -> str:
        """How to do it again, and what was seen."""
        tails = "".join(
            f"\n--- {each.name} {each.statuses}\n{each.log_tail()}" for each in self.fleet.services.values()
        )
        return (
            f"TRINITY_SOAK_SEED={self.seed} repeats these acts; settings {varied(self.seed)}\n"
            + "\n".join(self.done)
            + tails
        )

    async def _progress(self) -> tuple[int, int, str]:
        try:
            return await asyncio.wait_for(self.reader.progress(), 20.0)
        except TimeoutError:
            return (0, 0, "unknown: the server does not answer")

    async def _until_begun(self) -> None:
        deadline = time.monotonic() + 60
        while (await self._progress())[1] < 1:
            assert time.monotonic() < deadline, f"the run does not begin\n{self.account()}"
            await asyncio.sleep(0.1)

    async def _do(self, act: Act) -> None:
        doing: Callable[[Act], Awaitable[str]] = getattr(self, f"_{act.kind}")
        words = await doing(act)
        self.counted[act.kind] += not words.startswith("nobody")
        self.note(f"{act.kind}: {words}")

    def _chosen(self, act: Act, *kinds: str) -> Service | None:
        found = self.fleet.alive(*kinds)
        return found[int(act.who * len(found))] if found else None

    def _later(self, seconds: float, undo: Callable[[], Awaitable[None]]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            await undo()

        task = asyncio.create_task(wait())
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    def _killed(self, service: Service | None) -> str:
        if service is None:
            return "nobody there"
        service.send(signal.SIGKILL)
        return service.name

    async def _kill_explorer(self, act: Act) -> str:
        return self._killed(self._chosen(act, "explorer"))

    async def _kill_trainer(self, act: Act) -> str:
        return self._killed(self._chosen(act, "trainer"))

    async def _kill_synchronizer(self, act: Act) -> str:
        return self._killed(self._chosen(act, "synchronizer"))

    async def _kill_trainer_in_checkpoint(self, act: Act) -> str:
        found = await self._appears(lambda: {each.name for each in self.run_dir.glob(".global_step_*.writing")})
        return f"{self._killed(self._chosen(act, 'trainer'))} in {found}" if found else "nobody writes a checkpoint"

    async def _kill_trainer_after_checkpoint(self, act: Act) -> str:
        before = {each.name for each in self.run_dir.glob("global_step_*")}
        found = await self._appears(lambda: {each.name for each in self.run_dir.glob("global_step_*")} - before)
        return f"{self._killed(self._chosen(act, 'trainer'))} after {found}" if found else "nobody makes a checkpoint"

    async def _appears(self, names: Callable[[], set[str]]) -> str | None:
        deadline = time.monotonic() + CHECKPOINT_PATIENCE_S
        while not (found := names()):
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.002)
        return min(found)

    async def _kill_server(self, act: Act) -> str:
        async with self.fleet.server_busy:
            os.kill(self.fleet.server.pid, signal.SIGKILL)
            while self.fleet.server.is_running:
                await asyncio.sleep(0.005)
            await asyncio.sleep(act.lasts_s / 4)
            await self.fleet.server.start()
        return f"and started again after {act.lasts_s / 4:.2f} s"

    async def _stop_server(self, act: Act) -> str:
        async with self.fleet.server_busy:
            await self.fleet.server.stop()
            await asyncio.sleep(act.lasts_s)
            await self.fleet.server.start()
        return f"for {act.lasts_s:.2f} s"

    async def _freeze_server(self, act: Act) -> str:
        async with self.fleet.server_busy:
            os.kill(self.fleet.server.pid, signal.SIGSTOP)
            await asyncio.sleep(act.lasts_s)
            os.kill(self.fleet.server.pid, signal.SIGCONT)
        return f"for {act.lasts_s:.2f} s"

    async def _freeze_service(self, act: Act) -> str:
        service = self._chosen(act, "explorer", "trainer", "synchronizer")
        if service is None:
            return "nobody there"
        service.send(signal.SIGSTOP)

        async def wake() -> None:
            service.send(signal.SIGCONT)

        self._later(act.lasts_s, wake)
        return f"{service.name} for {act.lasts_s:.2f} s"

    async def _partition(self, act: Act) -> str:
        service = self._chosen(act, "explorer", "trainer", "synchronizer", "monitor")
        if service is None:
            return "nobody there"
        service.proxy.partition()

        async def heal() -> None:
            service.proxy.heal()

        self._later(act.lasts_s, heal)
        return f"{service.name} for {act.lasts_s:.2f} s, {service.proxy.connections} connections"

    async def _cut(self, act: Act) -> str:
        service = self._chosen(act, "explorer", "trainer", "synchronizer", "monitor")
        if service is None:
            return "nobody there"
        await service.proxy.cut()

        async def heal() -> None:
            service.proxy.heal()

        self._later(act.lasts_s / 4, heal)
        return f"{service.name} for {act.lasts_s / 4:.2f} s"

    async def _supersede_trainer(self, act: Act) -> str:
        """A second trainer begins while the first is frozen, which then wakes."""
        first = self._chosen(act, "trainer")
        if first is None:
            return "nobody there"
        before = await self.reader.value("incarnation", "incarnation_taken") or {}
        first.send(signal.SIGSTOP)
        self._joined += 1
        second = await self.fleet.add("trainer", f"trainer-{self._joined}")
        deadline = time.monotonic() + 20
        while (await self.reader.value("incarnation", "incarnation_taken") or {}) == before:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        first.send(signal.SIGCONT)
        return f"{first.name} by {second.name}"

    async def _join_explorer(self, act: Act) -> str:
        if len(self.fleet.wanted("explorer")) >= MOST_EXPLORERS:
            return "nobody more may join"
        self._joined += 1
        return (await self.fleet.add("explorer", f"explorer-{self._joined}")).name

    async def _leave_explorer(self, act: Act) -> str:
        service = self._chosen(act, "explorer")
        if service is None or len(self.fleet.wanted("explorer")) < 2:
            return "nobody may leave"
        service.is_wanted = False
        service.send(signal.SIGTERM)
        return service.name

    async def _garbage(self, act: Act) -> str:
        """On every subject of the run, also under the names of those who are there, and on keys in use and others."""
        subject, released = self.reader.subject, await self._released()
        subjects = [
            subject("tasks", "sums"),
            subject("tasks", "nobody"),
            subject("tasks", "stray", "sums"),
            subject("experiences", "stranger"),
            subject("experiences", "explorer-a"),
            subject("weights"),
            subject("metrics", "trainer", "trainer"),
            subject("metrics", "x"),
            subject("reports", "evaluator", "x"),
            subject("quarantine", "experiences"),
            subject("quarantine", "tasks"),
            subject("blobs", "0" * 64, "0"),
            self.reader.key("member.explorer.stranger"),
            self.reader.key("garbage"),
            self.reader.key(self._draw.choice(KEYS)),
        ]
        payloads = list(shapeless(self._draw))
        thrown = [(each, payload) for each in subjects for payload in self._draw.sample(payloads, 2)]
        sample = self._real_group()
        if sample is not None:
            place = subject("experiences", "stranger")
            thrown += [(place, payload) for payload in self._draw.sample(list(spoilt(sample, released)), 5)]
            thrown.append((subject("tasks", "sums"), sample))
            thrown.append((subject("weights"), sample))
        for place, payload in thrown:
            await self.reader.store(place, payload)
        return f"{len(thrown)} messages on {len(subjects)} subjects"

    async def _occupy_ids(self, act: Act) -> str:
        """Garbage stands under the ids of the next tasks, answers and weights before they come."""
        released = await self._released()
        taken = await self.reader.value("train", "train_progress") or {"weights": {"incarnation": 1, "version": 0}}
        incarnation, version = taken["weights"]["incarnation"], taken["weights"]["version"]
        ids = [
            (self.reader.subject("experiences", "stranger"), f"{self.run}:answer:{released + 2}:0"),
            (self.reader.subject("experiences", "stranger"), f"{self.run}:answer:{released + 5}:0"),
            (self.reader.subject("tasks", "sums"), f"{self.run}:task:{released + 3}:0"),
            (self.reader.subject("tasks", "sums"), f"{self.run}:task:{released + 5}:0"),
            (self.reader.subject("weights"), f"{self.run}:weights:{incarnation}:{version + 2}:False"),
        ]
        for place, message_id in ids:
            await self.reader.store(place, b"garbage", message_id)
        return ", ".join(message_id for _, message_id in ids)

    async def _redeliver(self, act: Act) -> str:
        """Answers that are in the stream already come once more: under their own id, and under new ones."""
        kept = list(self.reader.observed.experiences.values())[-60:]
        chosen = self._draw.sample(kept, min(3, len(kept)))
        for number, each in enumerate(chosen):
            message_id = each.headers.get("Nats-Msg-Id") if number == 0 else f"again:{self._draw.getrandbits(64)}"
            await self.reader.store(each.subject, each.payload, message_id, each.headers)
        return f"of sequences {[each.sequence for each in chosen]}" if chosen else "nobody has answered yet"

    async def _released(self) -> int:
        return int((await self.reader.value("release", "release_progress") or {}).get("released", 0))

    def _real_group(self) -> bytes | None:
        groups = self.reader.observed.answers()
        return self._draw.choice(groups[-40:]) if groups else None
