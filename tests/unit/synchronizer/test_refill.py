"""Whatever is filtered, no run stalls, steps are made, and no trained token is staler than the bound of the pace."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.state import Refill, TrainProgress
from schemas.weights import WeightVersion
from services.config.tree import RunConfig
from services.rollout.config import TasksetConfig
from services.rollout.mixture import Mixture
from services.rollout.tasksets import open_taskset
from services.synchronizer.pace import Facts, Pace, floor_version, staleness_bound, waiting_for
from services.synchronizer.plan import Plan
from services.synchronizer.recovery import unanswered
from services.synchronizer.refill import recorded, tasks_before, tasks_made_up
from services.trainer.ledger import Numbers

GROUP = 4


def train(batches: int, gathered: int, floor: int = 0, above: tuple[int, ...] = ()) -> TrainProgress:
    return TrainProgress(
        weights=WeightVersion(),
        step=batches,
        batches_closed=batches,
        gathered=gathered,
        answered_floor=floor,
        answered_above=above,
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plan]:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n", encoding="utf-8")
    mixture = Mixture([open_taskset(TasksetConfig(name="sums", path=str(path)))])

    def make(total_steps: int | None, size: int, steps_per_batch: float = 1.0, **pace: Any) -> Plan:
        per_step = round(size * GROUP / steps_per_batch)
        buffer = {"batch_size": size, "train_batch_size": per_step, "total_steps": total_steps}
        config = RunConfig.model_validate({"buffer": buffer, "algorithm": {"repeat_times": GROUP}})
        return Plan(config, mixture, Pace(**{"style": "fixed", "steps_per_batch": steps_per_batch, **pace}), size)

    return make


def test_filtered_answers_count_for_nothing_and_those_to_come_for_what_they_owe() -> None:
    assert tasks_made_up(8, 8, None, 16, GROUP) == 0
    assert tasks_made_up(8, 8, train(0, 0), 16, GROUP) == 0
    assert tasks_made_up(8, 0, train(2, 0), 16, GROUP) == 0
    assert tasks_made_up(8, 4, train(0, 8), 16, GROUP) == 2  # two of four groups are left
    assert tasks_made_up(8, 4, train(0, 7), 16, GROUP) == 3  # a part of a group does not make up for a task
    assert tasks_made_up(4, 0, train(1, 8), 16, GROUP) == -2  # answers of several steps have given more


def test_the_next_batch_ends_where_the_step_will_be_full(plan) -> None:
    found = plan(total_steps=3, size=4)
    assert list(found.next_batch(4)) == [4, 5, 6, 7]
    assert list(found.next_batch(4, made_up=1)) == [4]
    assert list(found.next_batch(4, made_up=4)) == [4, 5, 6, 7]
    assert list(found.next_batch(12)) == []
    assert list(found.next_batch(12, made_up=2)) == [12, 13]


def test_the_places_of_what_is_unanswered_are_kept_and_no_others() -> None:
    refills = recorded((), 4, 0, answered_floor=0)
    assert refills == ()
    refills = recorded(refills, 8, 3, answered_floor=6)
    refills = recorded(refills, 11, 3, answered_floor=6)
    refills = recorded(refills, 15, 5, answered_floor=7)
    assert refills == (Refill(first_ordinal=8, tasks=3), Refill(first_ordinal=15, tasks=5))
    assert [tasks_before(ordinal, refills) for ordinal in (7, 8, 14, 15)] == [0, 3, 3, 5]
    assert recorded(refills, 18, 5, answered_floor=16) == (Refill(first_ordinal=15, tasks=5),)


def test_a_successor_repeats_just_the_newest_batch(plan) -> None:
    found = plan(total_steps=9, size=4)
    assert found.newest_batch(8) == range(4, 8)
    assert found.newest_batch(9, recorded((), 8, 1, 0)) == range(8, 9)
    assert found.newest_batch(12, recorded((), 8, 4, 0)) == range(8, 12)


def test_steps_need_tasks_until_answers_make_them_and_epochs_have_only_so_many(plan) -> None:
    steps = plan(total_steps=2, size=4)
    assert not steps.is_through(8, None)
    assert not steps.is_through(8, train(1, 12))
    assert steps.is_through(9, train(2, 0))
    assert steps.is_through(8, TrainProgress(weights=WeightVersion(), step=1))  # of a trainer that tells no batches
    assert not steps.is_trained(9, train(1, 0))


@dataclass
class _Run:
    """A run whose groups are filtered in whole or in part, by chance."""

    plan: Plan
    chance: random.Random
    share: float
    refill: int
    released: int = 0
    refills: tuple[Refill, ...] = ()
    open_tasks: list[tuple[int, int]] = field(default_factory=list)
    answered: Numbers = field(default_factory=Numbers)
    batches: list[list[int]] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    owed: int = 0
    made_up: int = 0
    step: int = 0
    version: int = 0
    worst: int = 0

    @property
    def size(self) -> int:
        return self.plan.config.usual_batch_size

    @property
    def train(self) -> TrainProgress:
        above = tuple(sorted(self.answered.above))
        return train(self.step + len(self.batches), self.owed, self.answered.floor, above)

    def release(self) -> bool:
        told = self.train
        waiting = unanswered(self.released, told)
        made_up = tasks_made_up(self.released, len(waiting), told, self.size, GROUP)
        ordinals = self.plan.next_batch(self.released, made_up)
        batch = (self.released - made_up) // self.plan.batch_size
        oldest = min((self.plan.batch_of(each, self.refills) for each in waiting), default=batch)
        facts = Facts(self.version, self.step, oldest, len(self.open_tasks) / self.plan.batch_size)
        if not ordinals or waiting_for(batch, self.plan.pace, facts) is not None:
            return False
        self.refills = recorded(self.refills, ordinals.start, made_up, told.answered_floor)
        assert {self.plan.batch_of(each, self.refills) for each in ordinals} == {batch}
        assert self.plan.newest_batch(ordinals.stop, self.refills) == ordinals
        floor = floor_version(batch, self.plan.pace)
        self.open_tasks += [(each, max(self.version, floor)) for each in ordinals]
        self.released = ordinals.stop
        return True

    def answer(self) -> None:
        ordinal, version = self.open_tasks.pop(self.chance.randrange(len(self.open_tasks)))
        self.answered.add([ordinal])
        filtered = self.chance.randint(1, GROUP) if self.chance.random() < self.share else 0
        made_up = min(filtered, self.refill * self.size - self.made_up)
        self.made_up += made_up
        self.gathered += [version] * (GROUP - filtered)
        self.owed += GROUP - made_up
        if self.owed >= self.size:
            self.batches.append(self.gathered)
            self.gathered, self.owed, self.made_up = [], 0, 0

    def make_step(self) -> None:
        self.worst = max([self.worst, *(self.step - version for version in self.batches.pop(0))])
        self.step += 1
        self.version = self.step if self.step % self.plan.pace.interval == 0 else self.version


@settings(max_examples=150, deadline=None)
@given(
    style=st.sampled_from(["fixed", "asynchronous", "explorer", "trainer"]),
    interval=st.integers(1, 3),
    offset=st.integers(0, 3),
    slack=st.one_of(st.none(), st.integers(0, 4)),
    size=st.sampled_from([1, 2, 4]),
    steps_per_batch=st.sampled_from([0.5, 1.0, 2.0, 4 / 3]),
    share=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    refill=st.sampled_from([0, 1, 4]),
    slow=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 10_000),
)
def test_a_filtered_run_never_stalls_makes_its_steps_and_never_exceeds_its_bound(
    plan, style, interval, offset, slack, size, steps_per_batch, share, refill, slow, seed
) -> None:
    steps = 8
    size = 4 if steps_per_batch > 1 else size
    pace = {
        "style": style,
        "interval": interval,
        "offset": offset,
        "max_staleness": None if slack is None else offset + interval - 1 + slack,
        "max_outstanding": offset + interval + 1 + slow,
    }
    run = _Run(plan(steps, size, steps_per_batch, **pace), random.Random(seed), share, refill)
    while run.step < steps:
        moved = run.release()
        if run.open_tasks and (not moved or run.chance.random() < 0.5):
            run.answer()
            moved = True
        if run.batches and run.chance.random() < 0.7:
            run.make_step()
            moved = True
        assert moved or run.batches, f"stalled at step {run.step} with {run.train}"
    bound = staleness_bound(run.plan.pace)
    assert bound is None or run.worst <= bound
    assert run.plan.is_through(run.released, run.train)
    assert run.released <= steps * (1 + refill) * run.size / GROUP + steps + size
    assert share > 0.0 or run.released == run.plan.tasks
