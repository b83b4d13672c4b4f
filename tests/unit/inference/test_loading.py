"""An engine never samples with weights that were loaded in part: a load that fails half way ends it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.weights import WeightVersion
from services.inference.engine import EngineDied, Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings
from services.inference.vllm_lora import LoraSettings
from services.inference.weights import WeightsUnusable

OLD, NEW = WeightVersion(incarnation=1, version=3), WeightVersion(incarnation=1, version=4)


class Scheduler:
    """What the engine uses of vLLM's `AsyncLLM`. `fails_at` names the call that fails."""

    errored = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_at: str | None = None
        self.is_paused = False
        self._aborted = asyncio.Event()

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.is_paused = True

    async def resume_generation(self) -> None:
        self.is_paused = False

    async def collective_rpc(self, method: str, args: tuple[str, ...]) -> None:
        self._call(method)

    async def update_weight_version(self, version: str) -> None:
        self._call("update_weight_version")

    async def abort(self, request_ids: Iterable[str]) -> None:
        self._aborted.set()

    async def generate(
        self, prompt: object, params: object, request_id: str, lora_request: object
    ) -> AsyncIterator[Any]:
        """Of a paused scheduler: nothing, until it is aborted."""
        await self._aborted.wait()
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5])], finished=True)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise RuntimeError("a file is cut off")


def _engine(**settings: Any) -> tuple[VllmEngine, Scheduler]:
    pytest.importorskip("vllm")
    engine, scheduler = VllmEngine(VllmSettings(model_path="base", **settings)), Scheduler()
    engine._llm = scheduler
    return engine, scheduler


async def _while_a_request_is_in_flight(engine: VllmEngine, act: Callable[[], Awaitable[None]]) -> asyncio.Task[Any]:
    request = asyncio.create_task(engine.sample([1, 2], Sampling()))
    while engine.load_now().requests == 0:
        await asyncio.sleep(0)
    await act()
    return request


@pytest.mark.parametrize("step", ["load_announced", "update_weight_version"])
async def test_a_load_that_fails_half_way_ends_the_engine_and_its_requests(step: str) -> None:
    engine, scheduler = _engine()
    await engine.load("three", OLD)
    scheduler.fails_at = step

    async def fail() -> None:
        with pytest.raises(EngineDied, match=r"version 4 was not loaded as a whole: .*a file is cut off"):
            await engine.load("four", NEW)

    request = await _while_a_request_is_in_flight(engine, fail)
    with pytest.raises(EngineDied, match="version 4 was not loaded"):
        await request
    assert (engine.weights, scheduler.is_paused, engine.load_now().requests) == (OLD, True, 0)
    scheduler.fails_at = None
    with pytest.raises(EngineDied):
        await engine.sample([1, 2], Sampling())
    with pytest.raises(EngineDied):
        await engine.load("four", NEW)


async def test_weights_that_are_refused_before_anything_changes_leave_the_engine_as_it_is() -> None:
    engine, scheduler = _engine(lora=LoraSettings(4))
    engine._adapter = object()
    with pytest.raises(WeightsUnusable, match="cannot take the place of an adapter"):
        await engine.load("base", NEW)
    assert (engine.weights, scheduler.is_paused, scheduler.calls) == (None, False, [])
    engine._adapter = None
    await engine.load("base", NEW)
    assert (engine.weights, scheduler.is_paused, scheduler.calls) == (NEW, False, ["update_weight_version"])
