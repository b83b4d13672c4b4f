"""The workflow whose reward is a reward model's score."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.auxiliary import Auxiliaries, Defaults, EngineModel
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.inference.fake_classifier import FakeClassifier
from services.inference.reward_model import ClassifierModel
from services.rollout.errors import AuxiliaryMissing, TaskFailed
from services.rollout.policy import Policy
from services.rollout.runner import answer
from services.rollout.workflows import workflow_named

Task = Callable[..., TaskReleased]
JUDGE = EngineModel("judge", FakeEngine(), Defaults())
LAID_OUT = "system: Be brief.\nuser: 6*7?\nassistant: It is 42\n"


def _scored_by(scores: dict[str, float], name: str = "rm") -> ClassifierModel:
    return ClassifierModel(name, FakeClassifier(scores=scores), Defaults())


def _policy(says: str, *models: Any) -> Policy:
    return Policy(FakeEngine(lines=[says]), Sampling(max_tokens=50), auxiliary=Auxiliaries(models))


async def _answered(task: TaskReleased, policy: Policy) -> Experience:
    (experience,) = await answer(task, workflow_named(task.workflow), policy, max_retry_times=0, max_timeout_s=30)
    return experience


@pytest.fixture
def task(released_task: Task) -> Task:
    layout = {"response_key": "answer", "system_prompt": "Be brief.", "reply_prefix": "It is "}
    row = {"prompt": "6*7?", "answer": "42"}

    def make(**changes: Any) -> TaskReleased:
        given = {"workflow": "reward_model_workflow", "row": row, "format_args": layout}
        return released_task(**(given | changes))

    return make


async def test_the_score_of_prompt_and_response_is_the_reward(task: Task) -> None:
    experience = await _answered(task(), _policy("42", JUDGE, _scored_by({LAID_OUT: -1.25, "user": 9.0})))
    assert experience.reward == -1.25
    assert experience.metrics == {"reward_model_score": -1.25}
    assert experience.prompt_text.endswith("It is ")


async def test_a_named_reward_adds_its_scores(task: Task) -> None:
    rewarded = task(reward_fn="math_dapo_reward")
    experience = await _answered(rewarded, _policy("42", _scored_by({LAID_OUT: 0.5})))
    assert experience.metrics["reward_model_score"] == 0.5
    assert experience.metrics["accuracy"] == 1.0
    assert experience.reward == pytest.approx(1.5)


async def test_a_reward_model_is_asked_by_its_name_and_never_as_a_judge(task: Task) -> None:
    policy = _policy("42", _scored_by({"user": 1.0}), _scored_by({"user": 2.0}, "strict"), JUDGE)
    assert (await _answered(task(), policy)).reward == 1.0
    assert (await _answered(task(workflow_args={"reward_model": "strict"}), policy)).reward == 2.0
    assert policy.judge is JUDGE


async def test_without_a_reward_model_the_task_fails_with_what_to_set(task: Task) -> None:
    policy = _policy("42", JUDGE)
    with pytest.raises(TaskFailed, match=r"needs a reward model: name it under explorer\.auxiliary_models"):
        await _answered(task(), policy)
    with pytest.raises(AuxiliaryMissing):
        policy.reward_model()
