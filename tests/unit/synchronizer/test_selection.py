"""The rows of an adaptive taskset: chosen by what was answered, and for each task once, whoever leads."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from bus.jetstream import connect
from bus.port import Bus
from bus.server import LocalServer
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.rollout.config import DataSelectorConfig, TasksetConfig
from services.rollout.errors import TasksetError
from services.rollout.mixture import Mixture
from services.rollout.tasksets import Taskset
from services.synchronizer import selection
from services.synchronizer.progress import Superseded
from services.synchronizer.selection import Selection, pass_rate

RUN, ROWS = "tests/selection", 12


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    server = LocalServer(tmp_path / "store", sync_interval="2m")
    await server.start()
    bus = await connect(server.url, RUN, name="test")
    await bus.declare()
    yield bus
    await bus.close()
    await server.stop()


def taskset(rows: int = ROWS, **kwargs: object) -> Taskset:
    arguments = {"target_reward": 0.5, "tau": 0.0, "metric_key": "accuracy", **kwargs}
    selector = DataSelectorConfig(selector_type="difficulty_based", kwargs=arguments)
    return Taskset("hard", TasksetConfig(name="hard", data_selector=selector), [{}] * rows, ["prompt"])


def answered(ordinal: int, index: int, accuracies: tuple[float, ...]) -> GroupSampled:
    experiences = tuple(
        Experience(
            position=position,
            tokens=[1, 2],
            prompt_length=1,
            action_mask=[1],
            logprobs=[-1.0],
            token_versions=[0],
            reward=accuracy - 0.1,
            metrics={"accuracy": accuracy},
        )
        for position, accuracy in enumerate(accuracies)
    )
    task = TaskIdentity(ordinal=ordinal, batch=0, taskset="hard", epoch=0, index=index)
    return GroupSampled(run=RUN, task=task, repeat_times=len(accuracies), explorer="e", experiences=experiences)


def rows_of(chooser: Selection, tasks: range) -> list[tuple[int, int]]:
    return [chooser.chosen("hard", nth) for nth in tasks]


async def test_a_successor_releases_the_rows_that_were_recorded_and_goes_on_from_what_was_learned(bus) -> None:
    mixture = Mixture([taskset()])
    leader = Selection(bus, 1)
    await leader.prepare(mixture, range(4))
    await bus.publish(answered(0, 3, (1.0, 0.0)))
    await leader.prepare(mixture, range(4, 8))
    before = rows_of(leader, range(8))
    assert before[0:4] == [(0, 0), (0, 1), (0, 2), (0, 3)]  # all are as good, at the beginning
    successor = Selection(bus, 2)
    await successor.prepare(mixture, [5])
    assert rows_of(successor, range(8)) == before
    await successor.prepare(mixture, range(8, 12))
    taken: dict[int, list[int]] = {}
    for epoch, row in rows_of(successor, range(12)):
        taken.setdefault(row, []).append(epoch)
    assert all(epochs == list(range(len(epochs))) for epochs in taken.values())
    with pytest.raises(Superseded, match="another synchronizer has chosen rows of hard since"):
        await leader.prepare(mixture, range(8, 12))


async def test_rows_whose_pass_rate_is_near_the_target_are_asked_again_and_others_are_not(bus) -> None:
    chooser, mixture = Selection(bus, 1), Mixture([taskset(lamb=0.0, rho=0.0)])
    await chooser.prepare(mixture, range(ROWS))
    assert sorted(row for _, row in rows_of(chooser, range(ROWS))) == list(range(ROWS))
    for ordinal, (_, row) in enumerate(rows_of(chooser, range(ROWS))):
        await bus.publish(answered(ordinal, row, (1.0, 0.0) if row in (4, 7) else (float(row % 2),) * 2))
    await chooser.prepare(mixture, range(ROWS, ROWS + 2))
    assert rows_of(chooser, range(ROWS, ROWS + 2)) == [(1, 4), (1, 7)]


async def test_tasks_that_are_forgotten_or_not_chosen_are_an_error_and_the_newest_are_kept(bus, monkeypatch) -> None:
    monkeypatch.setattr(selection, "CHOICES_KEPT", 4)
    chooser, mixture = Selection(bus, 1), Mixture([taskset()])
    await chooser.prepare(mixture, range(3))
    await chooser.prepare(mixture, range(3, 6))
    assert len(rows_of(chooser, range(2, 6))) == 4
    for nth in (1, 6):
        with pytest.raises(TasksetError, match=f"no row is recorded for its task {nth}, but for tasks 2 to 5"):
            chooser.chosen("hard", nth)


async def test_a_taskset_that_has_other_rows_than_it_had_is_refused(bus) -> None:
    await Selection(bus, 1).prepare(Mixture([taskset()]), range(2))
    with pytest.raises(TasksetError, match="it has 13 rows, and the run has chosen from 12"):
        await Selection(bus, 2).prepare(Mixture([taskset(13)]), range(2))


async def test_a_mixture_chooses_for_the_turns_of_its_adaptive_taskset_alone(bus) -> None:
    plain = Taskset("plain", TasksetConfig(name="plain"), [{}] * ROWS, ["prompt"])
    chooser = Selection(bus, 1)
    mixture = Mixture([plain, taskset()]).with_choices(chooser)
    await chooser.prepare(mixture, range(10))
    places = [mixture.task_at(ordinal) for ordinal in range(10)]
    assert [place.index for place in places if place.taskset is plain] == [0, 1, 2, 3, 4]
    assert len({place.index for place in places if place.taskset is not plain}) == 5


def test_the_pass_rate_of_an_episode_is_that_of_its_last_step_within_0_and_1() -> None:
    group = answered(0, 0, (1.0, 0.0))
    first = group.experiences[0]
    steps = tuple(
        first.model_copy(update={"position": 0, "step": step, "reward": reward, "metrics": {}})
        for step, reward in enumerate((5.0, 1.1))
    )
    lone = first.model_copy(update={"position": 1, "reward": -0.1, "metrics": {}})
    assert pass_rate(group.model_copy(update={"experiences": (*steps, lone)})) == 0.5
    assert pass_rate(group, "accuracy") == 0.5
    assert np.isclose(pass_rate(group), 0.45)
