"""Of several trainers of one run the newest alone announces and commits; on a real server."""

import pytest

from bus.subjects import Stream
from schemas.state import Resumed
from schemas.weights import WeightsAnnounced, WeightVersion
from services.runtime.context import Superseded
from services.trainer.incarnation import begin
from services.trainer.ledger import Ledger

RUN = "project/name"


def _weights(incarnation: int, version: int) -> WeightsAnnounced:
    return WeightsAnnounced(
        run=RUN,
        weights=WeightVersion(incarnation=incarnation, version=version),
        uri="weights",
        files=(),
        dtype="float32",
        step_ended_at=0.0,
        announced_at=0.0,
    )


async def test_each_trainer_takes_the_next_number_and_says_where_it_goes_on(bus) -> None:
    first = await begin(bus, "trainer", Ledger())
    await first.goes_on_from(0)
    second = await begin(bus, "trainer", Ledger())
    await second.goes_on_from(4)
    assert (first.number, second.number) == (1, 2)
    assert second.lineage == (Resumed(incarnation=1, step=0), Resumed(incarnation=2, step=4))


async def test_a_number_is_above_all_that_the_checkpoints_know(bus) -> None:
    lineage = (Resumed(incarnation=7, step=3),)
    begun = await begin(bus, "trainer", Ledger(incarnation=7, lineage=lineage))
    assert (begun.number, begun.lineage) == (8, lineage)


async def test_a_superseded_trainer_can_neither_announce_nor_commit_nor_go_on(bus) -> None:
    first = await begin(bus, "first", Ledger())
    await first.publish(_weights(1, 0))
    second = await begin(bus, "second", Ledger())

    async def forbidden() -> None:
        raise AssertionError("it was superseded")

    for act in (first.publish(_weights(1, 1)), first.guard(forbidden), first.goes_on_from(0)):
        with pytest.raises(Superseded, match=r"incarnation 2 \(second\) has begun this run since; this one is 1"):
            await act
    await second.publish(_weights(2, 0))
    found = [delivery.message.weights async for delivery in bus.read(Stream.WEIGHTS, follow=False)]
    assert [(weights.incarnation, weights.version) for weights in found] == [(1, 0), (2, 0)]


async def test_an_announcement_frozen_on_its_way_is_refused_by_the_stream(bus) -> None:
    first = await begin(bus, "first", Ledger())
    frozen_at = (await bus.state(Stream.WEIGHTS)).last
    second = await begin(bus, "second", Ledger())
    await second.publish(_weights(2, 0))
    assert (await bus.state(Stream.WEIGHTS)).last > frozen_at
    with pytest.raises(Superseded):
        await first.publish(_weights(1, 0))


async def test_garbage_between_does_not_keep_the_newest_from_announcing(bus, raw) -> None:
    begun = await begin(bus, "trainer", Ledger())
    for version in range(3):
        await raw.jetstream().publish("trinity.project_name-aafb2010.weights", b"garbage")
        await begun.publish(_weights(1, version))
    assert (await bus.last(Stream.WEIGHTS)).message.weights.version == 2
