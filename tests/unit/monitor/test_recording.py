"""Whatever a record does, it misses nothing of the stream, has nothing twice, and stops nobody."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import services.monitor.recording as recording_module
from bus.jetstream import connect
from bus.port import Bus
from bus.server import LocalServer
from schemas.reports import MetricsReported
from services.monitor.record import Entry
from services.monitor.recording import Recording

RUN = "tests/recorded"


class Ledger:
    """A record that fails when it is told to, and loses what it was given then, as a server that dies does."""

    shown = "ledger"

    def __init__(self, failures: Sequence[str] = ()) -> None:
        self.entries: list[Entry] = []
        self.failures = list(failures)
        self.opened = 0
        self.is_closed = False

    def _may_fail(self, act: str) -> None:
        if self.failures and self.failures[0].startswith(act):
            raise ConnectionError(self.failures.pop(0))

    def open(self) -> int:
        self._may_fail("open")
        self.opened += 1
        return self.entries[-1].position if self.entries else 0

    def write(self, entries: Sequence[Entry]) -> None:
        held = self.entries[-1].position if self.entries else 0
        due = [entry for entry in entries if entry.position > held]
        self.entries += due[: len(due) // 2] if self.failures else due
        if due:
            self._may_fail("write")

    def close(self) -> None:
        self._may_fail("close")
        self.is_closed = True

    @property
    def steps(self) -> list[tuple[str, int, float]]:
        return [(entry.service, entry.step, entry.values["a"]) for entry in self.entries]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    server = LocalServer(tmp_path / "store")
    await server.start()
    bus = await connect(server.url, RUN, name="test")
    await bus.declare()
    yield bus
    await bus.close()
    await server.stop()


def _report(step: int, parts: int = 0) -> MetricsReported:
    values = {"a": float(step)}
    return MetricsReported(
        run=RUN, service="trainer", source="t", step=step, values=values, parts=parts, at=float(step)
    )


Follow = Callable[..., Awaitable[Recording]]


@pytest.fixture
def follow(bus: Bus) -> Follow:
    """A monitor that records until the sequence `until`, and then ends with its run, or as if it were stopped."""

    async def run(record: Ledger, until: int, *, is_over: bool) -> Recording:
        recording = Recording(bus, record)
        working = asyncio.create_task(recording.run())
        async with asyncio.timeout(30):
            while recording.position < until:
                await asyncio.sleep(0.01)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await recording.end(is_over=is_over)
        return recording

    return run


async def test_a_record_that_fails_is_caught_up_from_the_stream(bus: Bus, follow: Follow) -> None:
    record = Ledger(["open: no route", "open: refused", "write: reset", "close: gone", "write: again"])
    for step in range(1, 300):
        await bus.publish(_report(step))
    recording = await follow(record, 299, is_over=True)
    assert record.steps == [("trainer", step, float(step)) for step in range(1, 300)]
    assert record.failures == []
    assert (record.opened, recording.waits_for) == (3, "")


async def test_what_never_became_whole_is_recorded_once_when_the_run_ends_and_not_when_a_monitor_does(
    bus: Bus, follow: Follow
) -> None:
    record = Ledger()
    for report in (_report(1), _report(2, parts=2), _report(3)):
        await bus.publish(report)
    await follow(record, 3, is_over=False)
    assert record.steps == [("trainer", 1, 1.0), ("trainer", 3, 3.0)]
    await follow(record, 3, is_over=True)
    await follow(record, 3, is_over=True)
    assert record.steps == [("trainer", 1, 1.0), ("trainer", 3, 3.0), ("trainer", 2, 2.0)]
    for report in (_report(4), _report(5, parts=2)):
        await bus.publish(report)
    await follow(record, 5, is_over=True)
    await follow(record, 5, is_over=True)
    assert record.steps[3:] == [("trainer", 4, 4.0), ("trainer", 5, 5.0)]


async def test_a_record_that_cannot_be_closed_ends_nobody(bus: Bus, follow: Follow) -> None:
    record = Ledger(["close: no answer"])
    await bus.publish(_report(1))
    await follow(record, 1, is_over=True)
    assert (record.failures, record.is_closed) == ([], False)


async def test_a_record_that_waits_says_what_for(bus: Bus) -> None:
    record = Ledger(["open: refused\nby the peer"] * 1000)
    recording = Recording(bus, record)
    working = asyncio.create_task(recording.run())
    async with asyncio.timeout(30):
        while not recording.waits_for:
            await asyncio.sleep(0.01)
    assert (recording.waits_for, recording.position) == ("open: refused", 0)
    assert recording.waited_s() > 0
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await recording.end(is_over=True)
    assert record.entries == []
