"""The shipped workflows: how a row becomes a prompt, and a response an experience."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.engine import Sampling
from services.rollout.errors import EpisodeInvalid, UnknownName
from services.rollout.policy import Policy
from services.rollout.workflows import BOXED_PROMPT, THINK_PROMPT, WORKFLOWS, register_workflow, workflow_named

QUESTION = {"question": "What is 6*7?", "answer": "so\n#### 42"}
MESSAGES = {"prompt_type": "messages", "prompt_key": "question", "response_key": "answer"}
THINKING = f"system: {THINK_PROMPT}\nuser: What is 6*7?\nassistant: "
BOXING = f"system: {BOXED_PROMPT}\nuser: What is 6*7?\nassistant: "


async def one(task: TaskReleased, policy: Policy) -> Experience:
    experience = await workflow_named(task.workflow).episode(task, policy, 1)
    assert isinstance(experience, Experience)
    return experience


async def test_exact_match_asks_in_plain_text(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    experience = await one(released_task(), policy_of({"2+2=": "4\n"}))
    assert experience.prompt_text == "2+2="
    assert experience.reward == 1.0
    assert experience.metrics["accuracy"] == 1.0
    assert experience.position == 1


async def test_math_asks_for_a_thought_and_an_answer(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    task = released_task(workflow="math_workflow", row=QUESTION, format_args=MESSAGES)
    replies = {THINKING: "<think>easy</think>\n<answer>42</answer>"}
    experience = await one(task, policy_of(replies))
    assert experience.reward == 1.1
    assert experience.metrics == {"accuracy": 1.0, "format_score": 0.1}


async def test_a_system_prompt_of_the_configuration_takes_the_place_of_the_workflows_own(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    layout = MESSAGES | {"system_prompt": "Be brief.", "system_prompt_key": "rules"}
    task = released_task(workflow="math_workflow", row=QUESTION, format_args=layout)
    assert (await one(task, policy_of())).prompt_text == "system: Be brief.\nuser: What is 6*7?\nassistant: "
    own = released_task(workflow="math_workflow", row=QUESTION | {"rules": "Be loud."}, format_args=layout)
    assert (await one(own, policy_of())).prompt_text == "system: Be loud.\nuser: What is 6*7?\nassistant: "


async def test_boxed_math_reads_the_box(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    task = released_task(workflow="math_boxed_workflow", row=QUESTION, format_args=MESSAGES)
    experience = await one(task, policy_of({BOXING: r"it is \boxed{42}"}))
    assert experience.reward == 1.0
    assert set(experience.action_mask.tolist()) == {1}


async def test_nothing_is_learned_from_a_boxed_answer_that_was_cut_off(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    task = released_task(workflow="math_boxed_workflow", row=QUESTION, format_args=MESSAGES)
    experience = await one(task, policy_of({BOXING: r"it is \boxed{42}"}, sampling=Sampling(max_tokens=5)))
    assert experience.is_truncated
    assert experience.action_mask.tolist() == [0] * 5


async def test_boxed_math_with_thinking_takes_points_off_for_none(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    arguments = {"with_think": True, "format_score_coef": 0.25}
    task = released_task(
        workflow="math_boxed_workflow",
        row=QUESTION,
        format_args=MESSAGES | {"prompt_type": "plaintext", "system_prompt": "S"},
        workflow_args=arguments,
    )
    assert (await one(task, policy_of({"S\nWhat is 6*7?": r"\boxed{42}"}))).reward == 0.75


async def test_boxed_math_of_a_base_model_asks_in_plain_text(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    arguments = {"use_base": True}
    task = released_task(
        workflow="async_math_boxed_workflow", row=QUESTION, format_args=MESSAGES, workflow_args=arguments
    )
    asked = f"System:{BOXED_PROMPT}\nUser:\nWhat is 6*7?\nAssistant:\n"
    experience = await one(task, policy_of({asked: r"\boxed{42}"}))
    assert (experience.prompt_text, experience.reward) == (asked, 1.0)


@pytest.mark.parametrize(
    ("row", "layout", "prompt"),
    [
        ({"prompt": "a"}, {"prompt_type": "plaintext", "reply_prefix": "b"}, "ab"),
        ({"prompt": "a"}, {"prompt_type": "plaintext", "system_prompt": "s"}, "s\na"),
        ({"prompt": "a"}, {"reply_prefix": "b"}, "user: a\nassistant: b"),
        ({"message": [{"role": "user", "content": "a"}]}, {}, "user: a\nassistant: "),
        ({"prompt": [{"role": "user", "content": "a"}]}, {"system_prompt": "s"}, "system: s\nuser: a\nassistant: "),
        ({"prompt": [{"role": "system", "content": "t"}]}, {"system_prompt": "s"}, "system: t\nassistant: "),
        ({"prompt": 5}, {}, "user: 5\nassistant: "),
    ],
)
async def test_a_row_becomes_a_prompt(
    released_task: Callable[..., TaskReleased],
    policy_of: Callable[..., Policy],
    row: dict[str, Any],
    layout: dict[str, Any],
    prompt: str,
) -> None:
    assert (await one(released_task(row=row, format_args=layout), policy_of())).prompt_text == prompt


async def test_a_row_without_a_prompt_is_refused(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    with pytest.raises(EpisodeInvalid, match="row 2 of 'sums' has nothing under 'prompt'"):
        await one(released_task(row={"question": "a"}), policy_of())


async def test_the_simple_workflow_uses_the_reward_that_is_named(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    named = released_task(workflow="simple_workflow", reward_fn="exact_match_reward")
    assert (await one(named, policy_of({"2+2=": "4"}))).reward == 1.0
    with pytest.raises(EpisodeInvalid, match="'simple_workflow' needs a reward: set default_reward_fn_type"):
        await one(released_task(workflow="simple_workflow"), policy_of({"2+2=": "4"}))
    with pytest.raises(UnknownName, match="did you mean 'exact_match_reward'"):
        await one(released_task(reward_fn="exact_match"), policy_of({"2+2=": "4"}))


async def test_a_truncated_prompt_is_not_judged(
    released_task: Callable[..., TaskReleased], policy_of: Callable[..., Policy]
) -> None:
    experience = await one(released_task(), policy_of(max_prompt_tokens=2))
    assert experience.metrics == {"prompt_truncated": 1.0}
    assert experience.action_mask.tolist() == [0]


def test_an_unknown_workflow_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown workflow 'math_worklow': did you mean 'math_workflow'"):
        workflow_named("math_worklow")


def test_a_registered_workflow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rollout.workflows.WORKFLOWS", dict(WORKFLOWS))

    @register_workflow("mine")
    class Mine:
        async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
            raise NotImplementedError

    assert isinstance(workflow_named("mine"), Mine)
