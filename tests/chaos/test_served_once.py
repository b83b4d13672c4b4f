"""Every committed group is the answer to one task and no other, wherever an explorer dies on the way."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bus.jetstream import connect
from bus.permissions import Role
from bus.server import LocalServer
from bus.subjects import Stream
from schemas.experiences import GroupSampled
from schemas.state import TrainProgress
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.load import load
from services.explorer.serving.filling import Filling
from services.explorer.serving.history import History
from services.inference.engine import Completion
from services.inference.openai.calls import Call
from services.rollout.served import SERVED
from services.runtime.bus_access import settings
from services.runtime.context import Context
from services.runtime.keys import FINISHED, TRAIN
from services.runtime.member import Member

PATIENCE_S = 30.0


class Killed(BaseException):
    """The end of a process: nothing is tidied up."""


class Dying:
    """A bus for a process that ends at its `nth` word, before or after the bus has heard it."""

    def __init__(self, bus: Any, nth: int, is_after: bool) -> None:
        self._bus = bus
        self._left = nth
        self._is_after = is_after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bus, name)
        return self._fatal(found) if name in ("swap", "publish") else found

    async def queue(self, tasksets: Any) -> Any:
        return _DyingQueue(self, await self._bus.queue(tasksets))

    def _fatal(self, word: Callable[..., Any]) -> Callable[..., Any]:
        async def spoken(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._is_after:
                raise Killed
            done = await word(*arguments, **options)
            if self._left == 0:
                raise Killed
            return done

        return spoken


class _DyingQueue:
    def __init__(self, bus: Dying, queue: Any) -> None:
        self._bus, self._queue = bus, queue

    async def pull(self, most: int, wait_s: float) -> Any:
        return [_DyingDelivery(self._bus, each) for each in await self._queue.pull(most, wait_s)]


class _DyingDelivery:
    def __init__(self, bus: Dying, delivery: Any) -> None:
        self._delivery = delivery
        self.ack = bus._fatal(delivery.ack)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)


@pytest.fixture
async def context(tmp_path: Path, config: dict[str, Any]) -> AsyncIterator[Context]:
    server = LocalServer(tmp_path / "bus" / "store")
    await server.start()
    config["synchronizer"] = {"task_lease": 0.3, "max_deliver": 2, "heartbeat_interval": 0.1, "member_timeout": 1.0}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    chosen = load(path).config
    bus = await connect(server.url, chosen.run_name, name="test", settings=settings(chosen, Role.EXPLORER))
    await bus.declare()
    yield Context(chosen, bus, Member("explorer", "explorer"))
    await bus.close()
    await server.stop()


@pytest.fixture
def history_of(tmp_path: Path, context: Context) -> Any:
    """A history with committed groups, one for each name."""
    opened: list[History] = []

    def make(name: str, *conversations: str) -> History:
        opened.append(History(f"sqlite:///{tmp_path / name}.db", context.bus.run))
        for text in conversations:
            ids = np.frombuffer(b"yes", np.uint8).astype(np.int32)
            said = Completion(ids, np.float32([-1, -2, -3]), np.int32([1, 1, 2]), "yes", is_truncated=False)
            opened[-1].record([Call(text, 0, tuple(text.encode()), text, said)])
            opened[-1].judge([text], 1.0, text, "0")
        opened[-1].commit(1)
        return opened[-1]

    yield make
    for each in opened:
        each.close()


async def _release(context: Context, tasks: int, retry: int = 0) -> None:
    for ordinal in range(tasks):
        task = TaskIdentity(ordinal=ordinal, batch=ordinal, taskset=SERVED, epoch=ordinal, index=0)
        released = TaskReleased(run=context.bus.run, task=task, repeat_times=1, workflow=SERVED, row={}, retry=retry)
        await context.bus.publish(released)


async def _live(context: Context, history: History, done: Callable[[], Any], bus: Any = None) -> None:
    """A life of an explorer: until `done`, or until it is killed."""
    filling = Filling(Context(context.config, bus or context.bus, context.member), history, "")
    running = asyncio.create_task(filling.run())
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not running.done() and not await done():
            assert time.monotonic() < deadline, await _said(context)
            await asyncio.sleep(0.02)
        if running.done():
            running.result()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Killed):
            await running


async def _said(context: Context) -> list[Any]:
    return [each.message async for each in context.bus.read(Stream.EXPERIENCES, follow=False)]


async def _trained(context: Context) -> Counter[str]:
    """What a trainer's ledger makes of the stream, by the groups' names: the first answer of each task counts."""
    first: dict[int, GroupSampled] = {}
    for message in await _said(context):
        first.setdefault(message.task.ordinal, message)
    await context.bus.put(
        TRAIN, TrainProgress(weights=WeightVersion(), step=0, answered_above=tuple(sorted(first)), answered=len(first))
    )
    return Counter(each.experiences[0].prompt_text for each in first.values())


@pytest.mark.chaos
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(1, 10))
async def test_a_process_that_dies_anywhere_answers_each_task_once(context, history_of, nth, is_after) -> None:
    """The first word tells the count; then come claim, answer, metrics and acknowledgement of each of two groups."""
    one, other = history_of("one", "a", "b"), history_of("other", "c")
    await _release(context, 3)

    async def is_over() -> bool:
        return sum((await _trained(context)).values()) == 3

    with contextlib.suppress(Killed):
        await _live(context, one, is_over_of_one(one), Dying(context.bus, nth, is_after))
    lives = [asyncio.create_task(_live(context, each, is_over)) for each in (other, one)]
    await asyncio.gather(*lives)
    assert await _trained(context) == {"a": 1, "b": 1, "c": 1}
    told = [entry.message for entry in await context.bus.entries(FINISHED)]
    assert {each.history: each.groups for each in told} == {one.id: 2, other.id: 1}


def is_over_of_one(history: History) -> Callable[[], Any]:
    async def all_published() -> bool:
        return history.counts()["groups_published"] == 2

    return all_published


@pytest.mark.chaos
async def test_a_task_that_is_released_again_is_answered_by_the_same_group(context, history_of) -> None:
    history, other = history_of("one", "a"), history_of("other", "z")
    await _release(context, 1)
    await _live(context, history, is_answered_by(context, 1))
    await _release(context, 1, retry=1)  # as if the answer had been lost
    lives = [asyncio.create_task(_live(context, each, is_answered_by(context, 2))) for each in (other, history)]
    await asyncio.gather(*lives)
    answers = await _said(context)
    assert [(each.retry, each.experiences[0].prompt_text) for each in answers] == [(0, "a"), (1, "a")]


def is_answered_by(context: Context, number: int) -> Callable[[], Any]:
    async def said() -> bool:
        return len(await _said(context)) >= number

    return said


@pytest.mark.chaos
async def test_a_task_is_left_to_the_history_that_has_claimed_it(context, history_of) -> None:
    away, other = history_of("away", "a"), history_of("other", "b")
    await _release(context, 2)
    with pytest.raises(Killed):
        await _live(context, away, is_answered_by(context, 1), Dying(context.bus, 3, is_after=False))
    await _live(context, other, is_answered_by(context, 1))
    assert away.unpublished() == [(1, 0)]
    assert [(each.task.ordinal, each.experiences[0].prompt_text) for each in await _said(context)] == [(1, "b")]
    lives = [asyncio.create_task(_live(context, each, is_answered_by(context, 2))) for each in (other, away)]
    await asyncio.gather(*lives)
    assert await _trained(context) == {"a": 1, "b": 1}
