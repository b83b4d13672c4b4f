"""Agents that use the OpenAI client: what they had sampled becomes experiences with the reward that they end with."""

from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from schemas.tasks import TaskReleased
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.rollout.agents import OpenAIAgentWorkflow, Outcome
from services.rollout.errors import TaskFailed
from services.rollout.policy import Policy
from services.rollout.runner import answer
from services.rollout.workflows import WORKFLOWS, register_agent, workflow_named

Task = Callable[..., TaskReleased]


async def asking_twice(client: AsyncOpenAI, task: TaskReleased) -> Outcome:
    """Asks, and asks again in the same conversation."""
    said: list[Any] = [{"role": "user", "content": task.row["prompt"]}]
    for words in ("sure?", ""):
        completion = await client.chat.completions.create(model="policy", messages=said)
        content = completion.choices[0].message.content
        said += [{"role": "assistant", "content": content}, {"role": "user", "content": words}]
    return str(said[-2]["content"])


async def run(agent: Any, task: TaskReleased) -> Any:
    policy = Policy(FakeEngine(lines=["5", "4"]), Sampling(max_tokens=20))
    return await answer(task, OpenAIAgentWorkflow(agent), policy, max_retry_times=0, max_timeout_s=60)


async def test_the_text_that_an_agent_ends_with_is_scored_by_the_tasks_reward(released_task: Task) -> None:
    (experience,) = await run(asking_twice, released_task(reward_fn="exact_match_reward"))
    assert (experience.reward, experience.metrics["accuracy"]) == (1.0, 1.0)
    assert experience.prompt_text == "user: 2+2=\nassistant: "
    assert experience.response_text == "5\nuser: sure?\nassistant: 4"
    learned = experience.tokens[experience.prompt_length :][experience.action_mask == 1]
    assert bytes(learned.tolist()) == b"54"


@pytest.mark.parametrize(
    ("outcome", "reward", "metrics"),
    [(0.5, 0.5, {"score": 0.5}), ({"right": 1.0, "short": 0.25}, 1.25, {"right": 1.0, "short": 0.25})],
)
async def test_an_agent_may_end_with_its_reward(
    released_task: Task, outcome: Outcome, reward: float, metrics: dict[str, float]
) -> None:
    async def agent(client: AsyncOpenAI, task: TaskReleased) -> Outcome:
        await asking_twice(client, task)
        return outcome

    (experience,) = await run(agent, released_task())
    assert (experience.reward, experience.metrics) == (reward, metrics)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (None, "the agent returned a NoneType: it has to return a reward or a text"),
        ("4", "returned a text, which needs a reward: set default_reward_fn_type"),
    ],
)
async def test_an_agent_that_cannot_be_rewarded_fails_the_task(released_task: Task, outcome: Any, message: str) -> None:
    async def agent(client: AsyncOpenAI, task: TaskReleased) -> Any:
        return outcome

    with pytest.raises(TaskFailed, match=message):
        await run(agent, released_task())


def test_a_registered_agent_is_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rollout.workflows.WORKFLOWS", dict(WORKFLOWS))
    register_agent("asking")(asking_twice)
    assert isinstance(workflow_named("asking"), OpenAIAgentWorkflow)
    assert isinstance(workflow_named("async_asking"), OpenAIAgentWorkflow)
