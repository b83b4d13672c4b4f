"""The pace: which version a batch needs, and a simulation that the staleness bound holds under any order of answers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.config.tree import RunConfig
from services.synchronizer.pace import Facts, Pace, floor_version, last_step, span, staleness_bound, waiting_for
from services.synchronizer.plan import pace_of


@pytest.mark.parametrize(
    ("interval", "offset", "floors"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5]),
        (3, 0, [0, 0, 0, 3, 3, 3]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (2, 1, [0, 0, 0, 2, 2, 4]),
    ],
)
def test_fixed_floors_follow_interval_and_offset(interval: int, offset: int, floors: list[int]) -> None:
    pace = Pace("fixed", interval, offset)
    assert [floor_version(batch, pace) for batch in range(6)] == floors


def test_on_policy_means_a_staleness_of_zero() -> None:
    assert staleness_bound(Pace("fixed", 1, 0)) == 0


def test_fully_asynchronous_is_unbounded_without_max_staleness() -> None:
    assert staleness_bound(Pace("asynchronous")) is None
    assert staleness_bound(Pace("asynchronous", max_staleness=4)) == 4


def test_nothing_is_released_before_the_first_announcement() -> None:
    reason = waiting_for(0, Pace("fixed"), Facts(version=None, step=0, oldest_unanswered=0, outstanding=0))
    assert reason is not None
    assert "no weights have been announced" in reason


def test_a_slow_task_holds_the_pace() -> None:
    pace = Pace("fixed", 1, 1)
    facts = Facts(version=5, step=5, oldest_unanswered=2, outstanding=1)
    assert waiting_for(4, pace, facts) == "an answer to a task of batch 2"
    assert waiting_for(3, pace, facts) is None


@pytest.mark.parametrize(("ratio", "most"), [(0.0, 1.0), (0.25, 1.25), (0.3, 1.25), (0.75, 1.75)])
def test_over_rollout_lets_a_share_of_a_batch_be_slow(ratio: float, most: float) -> None:
    sections = {
        "buffer": {"batch_size": 4},
        "algorithm": {"repeat_times": 2},
        "explorer": {"over_rollout": {"ratio": ratio}},
        "synchronizer": {"sync_style": "fully_async"},
    }
    pace = pace_of(RunConfig.model_validate(sections))
    assert waiting_for(2, pace, Facts(version=2, step=2, oldest_unanswered=0, outstanding=most)) is None
    assert waiting_for(2, pace, Facts(version=2, step=2, oldest_unanswered=0, outstanding=most + 0.25)) == (
        f"explorers: {most + 0.25:.1f} batches are in their hands"
    )


@given(
    style=st.sampled_from(["fixed", "asynchronous", "explorer", "trainer"]),
    interval=st.integers(1, 3),
    offset=st.integers(0, 3),
    slack=st.one_of(st.none(), st.integers(0, 4)),
    size=st.integers(1, 4),
    seed=st.integers(0, 10_000),
)
def test_a_run_never_stalls_and_never_exceeds_its_bound(
    style: str, interval: int, offset: int, slack: int | None, size: int, seed: int
) -> None:
    staleness = None if slack is None else offset + interval - 1 + slack
    pace = Pace(style, interval, offset, staleness, max_outstanding=offset + interval + 1)  # type: ignore[arg-type]
    worst = _simulated(pace, size, batches=20, chance=random.Random(seed))
    bound = staleness_bound(pace)
    assert bound is None or worst <= bound
    assert bound is None or staleness is None or bound <= staleness


def _simulated(pace: Pace, size: int, batches: int, chance: random.Random) -> int:
    """Answer released tasks in any order, train in the order of answers. Returns the worst staleness seen."""
    open_tasks: list[tuple[int, int]] = []
    stream: list[tuple[int, int]] = []
    answered: set[int] = set()
    released = step = version = worst = 0
    while step < batches:
        oldest = next(ordinal for ordinal in range(batches * size + 1) if ordinal not in answered) // size
        facts = Facts(version, step, oldest, len(open_tasks) / size)
        moved = False
        if released < batches and waiting_for(released, pace, facts) is None:
            open_tasks += [
                (released * size + place, max(version, floor_version(released, pace))) for place in range(size)
            ]
            released, moved = released + 1, True
        if open_tasks and (not moved or chance.random() < 0.5):
            task = open_tasks.pop(chance.randrange(len(open_tasks)))
            stream.append(task)
            answered.add(task[0])
            moved = True
        if len(stream) >= size and chance.random() < 0.7:
            worst = max(worst, *(step - sampled for _, sampled in stream[:size]))
            del stream[:size]
            step, moved = step + 1, True
            version = step if step % pace.interval == 0 else version
        assert moved or len(stream) >= size, f"stalled at step {step} with {facts}"
    return worst


def test_batches_smaller_than_a_step_never_stall_it() -> None:
    pace = Pace("fixed", 1, 0, steps_per_batch=0.5)
    assert [floor_version(batch, pace) for batch in range(4)] == [0, 0, 1, 1]
    assert [last_step(batch, pace) for batch in range(4)] == [0, 0, 1, 1]
    assert waiting_for(1, pace, Facts(version=0, step=0, oldest_unanswered=0, outstanding=1)) is None


@pytest.mark.parametrize(
    ("steps_per_batch", "steps"), [(1.0, 0), (0.5, 0), (1 / 3, 0), (2.0, 1), (3.0, 2), (0.75, 1), (1.5, 1), (4 / 3, 1)]
)
def test_a_batch_that_makes_several_steps_is_as_stale_as_its_last_one(steps_per_batch: float, steps: int) -> None:
    pace = Pace("fixed", 1, 0, steps_per_batch=steps_per_batch)
    assert span(pace) == staleness_bound(pace) == steps
    assert span(pace) == max(last_step(batch, pace) - floor_version(batch, pace) for batch in range(12))
