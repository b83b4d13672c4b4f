"""Answers are compared with a greedy one that is not among them."""

from collections.abc import Callable

import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.baselines import answer_beside_greedy
from services.rollout.errors import TaskFailed
from services.rollout.policy import Policy


class ByTemperature:
    """Rewards an answer with the temperature at which it was sampled, in two steps of which the last one counts."""

    def __init__(self) -> None:
        self.temperatures: list[float] = []

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> list[Experience]:
        self.temperatures.append(policy.sampling.temperature)
        sampled = await policy.complete(task.row["prompt"])
        reward = policy.sampling.temperature + 0.25
        return [sampled.experience(position, 9.0, step=0), sampled.experience(position, reward, {"kept": 1.0}, step=1)]


async def test_each_answer_carries_the_reward_of_a_greedy_one(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    workflow, policy = ByTemperature(), policy_of({"2+2=": "4"}).with_sampling(temperature=1.0)
    task = released_task(repeat_times=2)
    experiences = await answer_beside_greedy(task, workflow, policy, max_retry_times=0, max_timeout_s=5)
    assert workflow.temperatures == [0.0, 1.0, 1.0]
    assert [(each.position, each.step, each.reward) for each in experiences] == [
        (0, 0, 9.0),
        (0, 1, 1.25),
        (1, 0, 9.0),
        (1, 1, 1.25),
    ]
    assert all(each.metrics["reward_baseline"] == 0.25 for each in experiences)
    assert experiences[1].metrics["kept"] == 1.0


async def test_without_a_greedy_answer_the_task_fails(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    class Broken:
        async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
            raise ValueError("no greed")

    with pytest.raises(TaskFailed, match="no greed"):
        await answer_beside_greedy(
            released_task(repeat_times=2), Broken(), policy_of({}), max_retry_times=0, max_timeout_s=5
        )
