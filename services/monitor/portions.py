"""From a stream to what blocks: what came together is written together, in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from bus.port import Delivery

_Result = TypeVar("_Result")


async def portions(
    gathered: asyncio.Queue[Delivery],
    reading: asyncio.Task[None],
    idle_s: float,
    weight: Callable[[Delivery], int],
    most: int,
) -> AsyncIterator[list[Delivery]]:
    """What came together, as one portion to write that weighs `most` or little more; an empty one where nothing came
    for `idle_s` seconds.

    Raises:
        BusError: or whatever else has ended `reading`, which fills `gathered`.
    """
    while True:
        portion: list[Delivery] = []
        try:
            portion.append(await asyncio.wait_for(gathered.get(), idle_s))
        except TimeoutError:
            if reading.done():
                reading.result()
        weighs = sum(map(weight, portion))
        while weighs < most and not gathered.empty():
            portion.append(gathered.get_nowait())
            weighs += weight(portion[-1])
        yield portion


async def in_thread(act: Callable[..., _Result], *arguments: object) -> _Result:
    """Do it in a thread. Who is cancelled meanwhile waits for its end: no two calls meet."""
    working = asyncio.ensure_future(asyncio.to_thread(act, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
