"""What 1, 10, 100 and 1,000 explorers cost one server: a group, the lag of an announcement, the server's memory.

Each simulated explorer has a connection of its own, as a real one has, and does all that a real one does on the bus:
heartbeats, pulling and renewing leased tasks, publishing groups of 8 x 1,536 tokens, acknowledging, following weight
announcements. Only sampling is a sleep. The explorers share a few processes; their own work is measured with the rest.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from roles import Role, machine, play, say, told
from throughput import groups

from bus.jetstream import connect
from bus.port import Bus, Delivery, LeaseTerms
from bus.server import LocalServer
from bus.settings import GIB, BusSettings
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from schemas.state import MemberSeen
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightsAnnounced, WeightVersion

RUN = "bench/explorers"
SETTINGS = BusSettings(max_experience_bytes=12 * GIB, terms=LeaseTerms(lease_s=15.0), connect_timeout_s=60.0)
SAMPLING_S, IN_HAND, HEARTBEAT_S, ANNOUNCE_S = 10.0, 2, 2.0, 2.0
WARM_UP_S = SAMPLING_S + 2.0
MOST_PROCESSES = 4


class Explorer:
    """One explorer: what it measures goes into lists that all of its process share."""

    def __init__(
        self, name: str, bus: Bus, group: GroupSampled, costs_s: list[float], lags_s: dict[int, list[float]]
    ) -> None:
        self._name = name
        self._bus = bus
        self._costs_s = costs_s
        self._lags_s = lags_s
        self._group = group.model_copy(update={"explorer": name})
        self._free = asyncio.Semaphore(IN_HAND)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._follow())
            tasks.create_task(self._pull(tasks))

    async def _beat(self) -> None:
        while True:
            now = time.time()
            seen = MemberSeen(
                service="explorer",
                member=self._name,
                host="bench",
                pid=1,
                started_at=now,
                seen_at=now,
                state="sampling",
            )
            await self._bus.put(f"member.explorer.{self._name}", seen, ttl_s=10.0)
            await asyncio.sleep(HEARTBEAT_S)

    async def _follow(self) -> None:
        async for delivery in self._bus.read(Stream.WEIGHTS):
            if isinstance(delivery.message, WeightsAnnounced):
                lag_s = time.time() - delivery.message.announced_at
                self._lags_s.setdefault(delivery.message.weights.version, []).append(lag_s)

    async def _pull(self, tasks: asyncio.TaskGroup) -> None:
        queue = await self._bus.queue()
        while True:
            await self._free.acquire()
            began = time.monotonic()
            pulled = await queue.pull(1, 1.0)
            for delivery in pulled:
                tasks.create_task(self._answer(delivery, time.monotonic() - began))
            if not pulled:
                self._free.release()

    async def _answer(self, delivery: Delivery, pulled_s: float) -> None:
        await asyncio.sleep(SAMPLING_S / 2)
        await delivery.in_progress()
        await asyncio.sleep(SAMPLING_S / 2)
        self._costs_s.append(pulled_s + await self._publish(delivery))
        self._free.release()

    async def _publish(self, delivery: Delivery) -> float:
        """Seconds from the answer to the acknowledgement of the task."""
        assert isinstance(delivery.message, TaskReleased)
        began = time.monotonic()
        await self._bus.publish(self._group.model_copy(update={"task": delivery.message.task}))
        await delivery.ack()
        return time.monotonic() - began


async def explorers(url: str, first: int, count: int, seconds: float) -> None:
    costs_s: list[float] = []
    lags_s: dict[int, list[float]] = {}
    (group,) = groups(RUN, 1)
    members = []
    for name in (f"explorer-{number}" for number in range(first, first + count)):
        bus = await connect(url, RUN, name=name, settings=SETTINGS)
        members.append(Explorer(name, bus, group, costs_s, lags_s))
    say(ready=True)
    await told()
    working = [asyncio.create_task(_late(member, place / count)) for place, member in enumerate(members)]
    await asyncio.sleep(WARM_UP_S)
    costs_s.clear()
    lags_s.clear()
    worked = time.process_time()
    await asyncio.sleep(seconds)
    worked = time.process_time() - worked
    measured = {"costs_s": list(costs_s), "lags_s": dict(lags_s), "worked": worked / seconds}
    failed = [task.exception() for task in working if task.done()]
    for task in working:
        task.cancel()
    _, deaf = await asyncio.wait(working, timeout=30.0)
    assert not failed, failed
    assert not deaf, f"{len(deaf)} explorers did not end when they were cancelled"
    say(**measured)


async def _late(explorer: Explorer, share: float) -> None:
    """Begin at some time of the first sampling, so that not all publish at once."""
    await asyncio.sleep(share * SAMPLING_S)
    await explorer.run()


def _task(ordinal: int) -> TaskReleased:
    identity = TaskIdentity(ordinal=ordinal, batch=ordinal // 64, taskset="train", epoch=0, index=ordinal)
    return TaskReleased(run=RUN, task=identity, repeat_times=8, workflow="math", row={"question": "1+1=", "answer": 2})


async def _announce(bus: Bus) -> None:
    version = 0
    while True:
        version += 1
        now = time.time()
        await bus.publish(
            WeightsAnnounced(
                run=RUN,
                weights=WeightVersion(version=version),
                uri="/nowhere",
                files=(),
                dtype="bfloat16",
                step_ended_at=now,
                announced_at=time.time(),
            )
        )
        await asyncio.sleep(ANNOUNCE_S)


async def _watch(pid: int, seen: list[float]) -> None:
    """The server's memory in MiB, each half second."""
    process = psutil.Process(pid)
    while True:
        seen.append(process.memory_info().rss / 2**20)
        await asyncio.sleep(0.5)


async def scale(count: int, seconds: float, sync: str, store: Path) -> dict[str, Any]:
    """One server with `count` explorers."""
    server = LocalServer(store / str(count) / "store", sync_interval=sync, max_file_bytes=16 * GIB)
    await server.start()
    bus = await connect(server.url, RUN, name="trainer", settings=SETTINGS)
    await bus.declare()
    wanted = int(count * IN_HAND * (seconds + 2 * WARM_UP_S) / SAMPLING_S) + 2 * count
    await bus.publish_all([_task(ordinal) for ordinal in range(wanted)], window=64)
    shares = [count // min(count, MOST_PROCESSES)] * min(count, MOST_PROCESSES)
    shares[0] += count - sum(shares)
    firsts = [sum(shares[:place]) for place in range(len(shares))]
    members = await asyncio.gather(
        *(
            Role.begin(__file__, "explorers", url=server.url, first=first, count=share, seconds=seconds)
            for first, share in zip(firsts, shares, strict=True)
        )
    )
    memory: list[float] = []
    process = psutil.Process(server.pid)
    helpers = [asyncio.create_task(_announce(bus)), asyncio.create_task(_watch(server.pid, memory))]
    for member in members:
        member.tell(go=True)
    await asyncio.sleep(WARM_UP_S)
    before = sum(process.cpu_times()[:2])
    results = await asyncio.gather(*(member.result() for member in members))
    used = sum(process.cpu_times()[:2]) - before
    for helper in helpers:
        helper.cancel()
    stored = await bus.state(Stream.EXPERIENCES)
    await bus.close()
    await server.stop()
    return _summary(results, memory, used / seconds, seconds, count) | {"stored": stored.messages}


def _summary(
    results: list[dict[str, Any]], memory: list[float], server_cores: float, seconds: float, count: int
) -> dict[str, Any]:
    costs = sorted(1000 * cost for result in results for cost in result["costs_s"])
    by_version: dict[str, list[float]] = {}
    for result in results:
        for version, lags in result["lags_s"].items():
            by_version.setdefault(version, []).extend(1000 * lag for lag in lags)
    complete = sorted(max(lags) for lags in by_version.values() if len(lags) == count)
    return {
        "groups_s": len(costs) / seconds,
        "cost_p50": _quantile(costs, 0.5),
        "cost_p99": _quantile(costs, 0.99),
        "lag_p50": _quantile(complete, 0.5),
        "lag_p99": _quantile(complete, 0.99),
        "announcements": f"{len(complete)} of {len(by_version)}",
        "rss_peak": max(memory),
        "server_cores": server_cores,
        "client_cores": sum(result["worked"] for result in results),
    }


def _quantile(numbers: list[float], share: float) -> float:
    return numbers[min(len(numbers) - 1, int(share * len(numbers)))] if numbers else float("nan")


HEADINGS = (
    ("explorers", "count", "{:d}"),
    ("groups/s", "groups_s", "{:.1f}"),
    ("cost p50 ms", "cost_p50", "{:.1f}"),
    ("p99", "cost_p99", "{:.1f}"),
    ("lag p50 ms", "lag_p50", "{:.1f}"),
    ("p99", "lag_p99", "{:.1f}"),
    ("heard by all", "announcements", "{}"),
    ("server MiB", "rss_peak", "{:.0f}"),
    ("cores", "server_cores", "{:.2f}"),
    ("clients' cores", "client_cores", "{:.2f}"),
)


LEGEND = f"""each with a connection of its own, {IN_HAND} tasks in hand, {SAMPLING_S:.0f} s of sampling a task,
a heartbeat every {HEARTBEAT_S:.0f} s; an announcement every {ANNOUNCE_S:.0f} s; at most {MOST_PROCESSES} processes
cost: pulling the task, publishing the group until it is stored, acknowledging the task; without the sampling
lag: from the announcement until the last explorer has it
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 1 and 10 explorers for 5 s")
    parser.add_argument("--counts", default="1,10,100,1000")
    parser.add_argument("--seconds", type=float, default=25.0, help="measured time at each number of explorers")
    parser.add_argument("--sync", default="always", help="sync_interval of the server")
    parser.add_argument("--dir", help="where the store lies (default: the directory for temporary files)")
    options = parser.parse_args()
    counts, seconds = ("1,10", 5.0) if options.quick else (options.counts, options.seconds)
    print(f"{machine()}; sync_interval {options.sync}")  # noqa: T201
    print(LEGEND)  # noqa: T201
    print(" ".join(f"{heading:>14}" for heading, _, _ in HEADINGS))  # noqa: T201
    with tempfile.TemporaryDirectory(dir=options.dir) as store:
        for count in (int(each) for each in counts.split(",")):
            row = {"count": count} | await scale(count, seconds, options.sync, Path(store))
            print(" ".join(f"{form.format(row[name]):>14}" for _, name, form in HEADINGS), flush=True)  # noqa: T201


if __name__ == "__main__":
    if "--role" in sys.argv:
        play({"explorers": explorers}, sys.argv[sys.argv.index("--role") + 1])
    else:
        asyncio.run(main())
