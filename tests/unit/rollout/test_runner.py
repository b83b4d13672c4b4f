"""A task is answered whole, or fails with its last error."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.engine import EngineDied
from services.rollout.errors import PromptTooLong, TaskFailed
from services.rollout.policy import Policy
from services.rollout.runner import answer


class Flaky:
    """Raises the errors that are listed for a position, one a try, then answers."""

    def __init__(self, failures: dict[int, list[BaseException]] | None = None) -> None:
        self.failures = failures or {}
        self.tries: Counter[int] = Counter()

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience | Sequence[Experience]:
        self.tries[position] += 1
        listed = self.failures.get(position, [])
        if self.tries[position] <= len(listed):
            raise listed[self.tries[position] - 1]
        return (await policy.complete(task.row["prompt"])).experience(position, float(position))


class Fixed:
    """Answers with what it was given."""

    def __init__(self, answered: object) -> None:
        self.answered = answered

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience | Sequence[Experience]:
        return self.answered  # type: ignore[return-value]


class Endless:
    """Never answers; counts who began and who was cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


@pytest.fixture
def task(released_task: Callable[..., TaskReleased]) -> TaskReleased:
    return released_task(repeat_times=4)


@pytest.fixture
def policy(policy_of: Callable[..., Policy]) -> Policy:
    return policy_of({"2+2=": "4"})


async def test_every_position_is_answered_in_order(task: TaskReleased, policy: Policy) -> None:
    experiences = await answer(task, Flaky(), policy, max_retry_times=0, max_timeout_s=5)
    assert [experience.position for experience in experiences] == [0, 1, 2, 3]
    assert [experience.reward for experience in experiences] == [0.0, 1.0, 2.0, 3.0]


async def test_an_error_is_tried_again(task: TaskReleased, policy: Policy) -> None:
    workflow = Flaky({2: [ValueError("a"), OSError("b")]})
    experiences = await answer(task, workflow, policy, max_retry_times=2, max_timeout_s=5)
    assert [experience.position for experience in experiences] == [0, 1, 2, 3]
    assert workflow.tries == {0: 1, 1: 1, 2: 3, 3: 1}


async def test_a_position_that_keeps_failing_fails_the_task_with_its_last_error(
    task: TaskReleased, policy: Policy
) -> None:
    workflow = Flaky({1: [ValueError("a"), OSError("b")]})
    said = r"task sums/1/2, position 1: failed after 2 tries: OSError: b"
    with pytest.raises(TaskFailed, match=said) as caught:
        await answer(task, workflow, policy, max_retry_times=1, max_timeout_s=5)
    assert (caught.value.position, caught.value.attempts) == (1, 2)


async def test_an_error_that_would_come_again_is_not_tried_again(task: TaskReleased, policy: Policy) -> None:
    workflow = Flaky({0: [PromptTooLong(9, 5)]})
    with pytest.raises(TaskFailed, match="failed after 1 try: PromptTooLong: a prompt of 9 tokens"):
        await answer(task, workflow, policy, max_retry_times=3, max_timeout_s=5)
    assert workflow.tries[0] == 1


async def test_a_try_ends_after_its_time(released_task: Callable[..., TaskReleased], policy: Policy) -> None:
    workflow = Endless()
    with pytest.raises(TaskFailed, match=r"failed after 2 tries: no answer within 0.02 s"):
        await answer(released_task(), workflow, policy, max_retry_times=1, max_timeout_s=0.02)
    assert (workflow.begun, workflow.cancelled) == (2, 2)


async def test_a_cancelled_task_leaves_nothing_running(task: TaskReleased, policy: Policy) -> None:
    workflow = Endless()
    answering = asyncio.create_task(answer(task, workflow, policy, max_retry_times=5, max_timeout_s=60))
    while workflow.begun < 4:
        await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (workflow.begun, workflow.cancelled) == (4, 4)


async def test_the_death_of_the_engine_is_told_as_it_is(task: TaskReleased, policy: Policy) -> None:
    workflow = Flaky({0: [ValueError("a")] * 9, 3: [EngineDied("gone")]})
    with pytest.raises(EngineDied, match="gone"):
        await answer(task, workflow, policy, max_retry_times=3, max_timeout_s=5)
    assert workflow.tries[3] == 1


async def test_the_steps_of_an_episode_stay_together(
    released_task: Callable[..., TaskReleased], policy: Policy
) -> None:
    sampled = await policy.complete("2+2=")
    steps = [sampled.experience(0, 0.0, step=0), sampled.experience(0, 1.0, step=1)]
    experiences = await answer(released_task(), Fixed(steps), policy, max_retry_times=0, max_timeout_s=5)
    assert [(experience.step, experience.reward) for experience in experiences] == [(0, 0.0), (1, 1.0)]


async def test_what_cannot_be_published_fails_the_task(
    released_task: Callable[..., TaskReleased], policy: Policy
) -> None:
    sampled = await policy.complete("2+2=")
    invalid = {
        "returned no experience": [],
        "returned a str, not an Experience": ["a"],
        "of position 7, where 0 was asked for": sampled.experience(7, 0.0),
        r"the same step: \[0, 0\]": [sampled.experience(0, 0.0), sampled.experience(0, 1.0)],
    }
    for said, answered in invalid.items():
        with pytest.raises(TaskFailed, match=f"failed after 1 try: EpisodeInvalid: .*{said}"):
            await answer(released_task(), Fixed(answered), policy, max_retry_times=2, max_timeout_s=5)


class Together:
    """Answers all positions at once, after failing so often, or all but those that are left out."""

    def __init__(self, failures: int = 0, left_out: tuple[int, ...] = (), more: tuple[int, ...] = ()) -> None:
        self.failures, self.left_out, self.more, self.tries = failures, left_out, more, 0

    async def group_episodes(self, task: TaskReleased, policy: Policy, repeat_times: int) -> list[Experience]:
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError("no judge")
        sampled = await policy.complete("2+2=")
        positions = [place for place in range(repeat_times) if place not in self.left_out]
        return [sampled.experience(place, float(place)) for place in (*positions[::-1], *self.more)]


async def test_a_group_is_answered_as_a_whole(task: TaskReleased, policy: Policy) -> None:
    workflow = Together()
    experiences = await answer(task, workflow, policy, max_retry_times=0, max_timeout_s=5)
    assert [(each.position, each.reward) for each in experiences] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert workflow.tries == 1


async def test_a_group_that_fails_is_tried_again_as_a_whole(task: TaskReleased, policy: Policy) -> None:
    workflow = Together(failures=2)
    assert len(await answer(task, workflow, policy, max_retry_times=2, max_timeout_s=5)) == 4
    assert workflow.tries == 3
    with pytest.raises(TaskFailed, match="task sums/1/2, all positions: failed after 2 tries: OSError: no judge"):
        await answer(task, Together(failures=2), policy, max_retry_times=1, max_timeout_s=5)


async def test_a_group_with_a_gap_or_with_more_than_was_asked_fails_the_task(
    task: TaskReleased, policy: Policy
) -> None:
    with pytest.raises(TaskFailed, match=r"failed after 1 try: EpisodeInvalid: .*no experience of position 1, 3"):
        await answer(task, Together(left_out=(1, 3)), policy, max_retry_times=2, max_timeout_s=5)
    with pytest.raises(TaskFailed, match="an experience of position 4, where 0 to 3 was asked for"):
        await answer(task, Together(more=(4,)), policy, max_retry_times=2, max_timeout_s=5)


class EndlessTogether:
    async def group_episodes(self, task: TaskReleased, policy: Policy, repeat_times: int) -> list[Experience]:
        await asyncio.Event().wait()
        return []


async def test_a_group_has_no_more_than_its_time(task: TaskReleased, policy: Policy) -> None:
    with pytest.raises(TaskFailed, match=r"all positions: failed after 1 try: no answer within 0.02 s"):
        await answer(task, EndlessTogether(), policy, max_retry_times=0, max_timeout_s=0.02)
