"""Workflows that are judged by another model, or by the policy itself, and those that a teacher follows."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskIdentity, TaskReleased
from services.inference.auxiliary import Auxiliaries, Defaults, EngineModel
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.rollout.errors import AuxiliaryMissing, EpisodeInvalid, TaskFailed
from services.rollout.policy import Policy, Prompting
from services.rollout.ruler import MathTrainableRulerWorkflow, comparison, scores_in
from services.rollout.runner import answer
from services.rollout.workflows import workflow_named

Task = Callable[..., TaskReleased]
ROW = {"prompt": "What is 6*7?", "answer": "42"}
RIGHT, WRONG = "<think>x</think>\n<answer>42</answer>", "<think>x</think>\n<answer>41</answer>"


def beside(judge: FakeEngine, *lines: str, **more: FakeEngine) -> Policy:
    """A policy that says `lines`, beside a model called `judge`, and others."""
    models = [EngineModel(name, engine, Defaults()) for name, engine in {"judge": judge, **more}.items()]
    return Policy(FakeEngine(lines=lines), Sampling(max_tokens=500), auxiliary=Auxiliaries(models))


async def run(task: TaskReleased, policy: Policy) -> tuple[Experience, ...]:
    return await answer(task, workflow_named(task.workflow), policy, max_retry_times=0, max_timeout_s=30)


@pytest.fixture
def task(released_task: Task) -> Task:
    def make(workflow: str, **changes: Any) -> TaskReleased:
        return released_task(
            **({"workflow": workflow, "row": ROW, "format_args": {"response_key": "answer"}} | changes)
        )

    return make


@pytest.mark.parametrize(
    ("verdict", "reward", "success"),
    [("Fine. [[3]], no: [[ 7.5 ]]", 0.75, 1.0), ("seven", 0.0, 0.0), ("[[11]]", 0.0, 0.0)],
)
async def test_an_auxiliary_models_marks_are_the_reward(
    task: Task, verdict: str, reward: float, success: float
) -> None:
    judge = FakeEngine(lines=[verdict])
    (experience,) = await run(task("math_rm_workflow"), beside(judge, "it is 42"))
    assert experience.reward == reward
    assert experience.metrics == {"judge_success": success, "judge_score": reward}


async def test_a_judge_is_asked_by_its_name(task: Task) -> None:
    policy = beside(FakeEngine(lines=["[[1]]"]), "42", strict=FakeEngine(lines=["[[2]]"]))
    (experience,) = await run(task("math_rm_workflow", workflow_args={"judge": "strict"}), policy)
    assert experience.reward == 0.2
    with pytest.raises(TaskFailed, match=r"explorer\.auxiliary_models has no 'strct': did you mean 'strict'"):
        await run(task("math_rm_workflow", workflow_args={"judge": "strct"}), policy)


@pytest.mark.parametrize("workflow", ["math_rm_workflow", "math_ruler_workflow", "on_policy_distill_workflow"])
async def test_without_an_auxiliary_model_a_judged_task_fails_with_what_to_set(
    task: Task, policy_of: Callable[..., Policy], workflow: str
) -> None:
    policy = policy_of()
    with pytest.raises(TaskFailed, match=r"needs an auxiliary model: name it under explorer\.aux") as failed:
        await run(task(workflow), policy)
    assert failed.value.attempts == 1
    with pytest.raises(AuxiliaryMissing):
        _ = policy.judge


@pytest.mark.parametrize(
    ("verdict", "reward", "success"),
    [
        ('```json\n{"rating": 7}\n```\nbecause', 0.7, 1.0),
        ('```\n{ "rating": 10 }```', 1.0, 1.0),
        ('{"rating": 7}', 0.0, 0.0),
        ('```json\n{"rating": 0}\n```', 0.0, 0.0),
        ('```json\n{"rating": true}\n```', 0.0, 0.0),
        ('```json\n{"rating": }\n```', 0.0, 0.0),
    ],
)
async def test_a_rating_by_rubrics_is_the_reward(task: Task, verdict: str, reward: float, success: float) -> None:
    rubric = [{"description": "says why", "weight": 3}, {"description": "is short", "weight": 1}]
    asked = task("rubric_judge_workflow", row=ROW | {"rubric": rubric})
    (experience,) = await run(asked, beside(FakeEngine(lines=[verdict]), "42"))
    assert experience.reward == pytest.approx(reward)
    assert experience.metrics["judge_success"] == success


async def test_the_rubrics_reach_the_judge(task: Task) -> None:
    rubric = [{"description": "says why", "weight": 3}]
    system = workflow_named("rubric_judge_workflow").questions(  # type: ignore[union-attr]
        task("rubric_judge_workflow", row=ROW | {"rubric": rubric}), (await _sampled("because"))
    )
    assert "1. (weight 3) says why" in system[1]["content"]
    assert "<response>\nbecause\n</response>" in system[1]["content"]
    assert "<prompt>\nWhat is 6*7?\n</prompt>" in system[1]["content"]


async def _sampled(text: str) -> Any:
    return await Policy(FakeEngine(lines=[text]), Sampling(max_tokens=99)).complete("p")


async def test_a_judge_outside_is_named_by_the_workflows_arguments(
    task: Task, monkeypatch: pytest.MonkeyPatch, policy_of: Callable[..., Policy]
) -> None:
    monkeypatch.delenv("JUDGE_URL", raising=False)
    with pytest.raises(EpisodeInvalid, match=r"needs workflow_args\.judge_model_name"):
        await workflow_named("rubric_judge_openai_workflow").episode(  # type: ignore[union-attr]
            task("rubric_judge_openai_workflow"), policy_of(), 0
        )
    arguments = {"judge_model_name": "big", "judge_api_base_url_env": "JUDGE_URL"}
    with pytest.raises(TaskFailed, match="the environment variable JUDGE_URL is not set"):
        await run(task("rubric_judge_openai_workflow", workflow_args=arguments), policy_of())


async def test_a_ruler_scores_all_answers_of_a_task_together(task: Task) -> None:
    judge = FakeEngine(lines=["The second is wrong [1, 2].\n[0.9, 0.1, 1.5]"])
    group = await run(task("math_ruler_workflow", repeat_times=3), beside(judge, RIGHT, WRONG, RIGHT))
    assert [experience.position for experience in group] == [0, 1, 2]
    assert [experience.reward for experience in group] == [0.9, 0.1, 1.0]
    assert [experience.metrics["gold_reward"] for experience in group] == pytest.approx([1.1, 0.1, 1.1])
    assert [experience.metrics["accuracy"] for experience in group] == [1.0, 0.0, 1.0]
    assert {experience.metrics["judge_success"] for experience in group} == {1.0}


async def test_the_judge_reads_the_question_and_every_answer() -> None:
    system, user = comparison("6*7?", ["a42", "b41"])
    assert "2 candidate solutions" in system["content"]
    assert "Question: 6*7?" in user["content"]
    assert "Candidate solution 1: a42\n\nCandidate solution 2: b41" in user["content"]
    assert user["content"].endswith("[score of solution 1, score of solution 2]")


@pytest.mark.parametrize(
    ("verdict", "scores"),
    [
        ("[0.5, 1]", [0.5, 1.0]),
        ("first [9, 9], then [-1, 0.25] in the end", [0.0, 0.25]),
        ("[0.5]", None),
        ('["a", "b"]', None),
        ("[0.5, __import__]", None),
        ("no list", None),
        ("[true, false]", None),
    ],
)
def test_scores_are_read_from_the_last_list(verdict: str, scores: list[float] | None) -> None:
    assert scores_in(verdict, 2) == scores


async def test_a_verdict_that_cannot_be_read_gives_nothing(task: Task) -> None:
    group = await run(task("math_ruler_workflow", repeat_times=2), beside(FakeEngine(lines=["?"]), RIGHT, WRONG))
    assert [(each.reward, each.metrics["judge_success"]) for each in group] == [(0.0, 0.0), (0.0, 0.0)]


def of_kind(task: Task, kind: str) -> TaskReleased:
    workflow = MathTrainableRulerWorkflow()
    for index in range(100):
        identity = TaskIdentity(ordinal=index, batch=0, taskset="sums", epoch=0, index=index)
        found = task("math_trainable_ruler_workflow", repeat_times=2, task=identity)
        if workflow.kind(found) == kind:
            return found
    raise AssertionError(kind)


async def test_the_policys_own_scores_are_the_rewards(task: Task, policy_of: Callable[..., Policy]) -> None:
    policy = Policy(FakeEngine(lines=[RIGHT, WRONG, "[0.75, 0.25]"]), Sampling(max_tokens=500))
    group = await run(of_kind(task, "ruler"), policy)
    assert [each.reward for each in group] == [0.75, 0.25]
    assert [each.response_text for each in group] == [RIGHT, WRONG]


async def test_where_the_truth_may_be_used_it_is_the_reward(task: Task) -> None:
    policy = Policy(FakeEngine(lines=[RIGHT, WRONG]), Sampling(max_tokens=500))
    group = await run(of_kind(task, "answers"), policy)
    assert [each.reward for each in group] == pytest.approx([1.1, 0.1])


async def test_where_the_truth_may_be_used_the_judge_is_trained_too(task: Task) -> None:
    policy = Policy(FakeEngine(lines=[RIGHT, WRONG, "[1.0, 0.0]", "none"]), Sampling(max_tokens=500))
    group = await run(of_kind(task, "judgements"), policy)
    assert [each.response_text for each in group] == ["[1.0, 0.0]", "none"]
    assert "Candidate solution 2: " + WRONG in group[0].prompt_text
    error = (abs(1.0 - 1.0) + abs(0.0 - 0.2 / 1.2)) / 2
    assert [each.reward for each in group] == pytest.approx([1 - error, 0.0])
    assert [each.metrics["judge_success"] for each in group] == [1.0, 0.0]


def test_a_fifth_of_the_tasks_may_use_the_truth(task: Task) -> None:
    workflow, kinds = MathTrainableRulerWorkflow(), []
    for index in range(2000):
        identity = TaskIdentity(ordinal=index, batch=0, taskset="sums", epoch=0, index=index)
        kinds.append(workflow.kind(task("math_trainable_ruler_workflow", task=identity)))
    assert kinds.count("ruler") / 2000 == pytest.approx(0.8, abs=0.03)
    assert kinds.count("answers") / 2000 == pytest.approx(0.1, abs=0.02)
    always = task("math_trainable_ruler_workflow", workflow_args={"ground_truth_share": 1.0})
    assert workflow.kind(always) in ("answers", "judgements")


async def test_a_teacher_says_how_likely_each_sampled_token_was(task: Task) -> None:
    teacher = FakeEngine()
    (experience,) = await run(task("on_policy_distill_workflow"), beside(teacher, "it is 42"))
    prompt, response = experience.tokens[: experience.prompt_length], experience.tokens[experience.prompt_length :]
    expected = await teacher.score(prompt.tolist(), response.tolist())
    assert experience.teacher_logprobs.tolist() == expected.tolist()
    assert experience.reward == 0.0
    divergence = experience.logprobs.astype(float).sum() - expected.astype(float).sum()
    assert experience.metrics == {"kl_divergence": pytest.approx(divergence)}


async def test_a_prompt_that_is_too_long_for_the_policy_is_kept_from_the_teacher_and_can_be_trained_beside_others(
    task: Task,
) -> None:
    teacher = FakeEngine()
    auxiliary = Auxiliaries([EngineModel("judge", teacher, Defaults())])
    limits = Prompting(max_prompt_tokens=4, max_model_len=50)
    policy = Policy(FakeEngine(), Sampling(max_tokens=9), limits, auxiliary=auxiliary)
    (experience,) = await run(task("on_policy_distill_workflow"), policy)
    assert experience.metrics == {"prompt_truncated": 1.0}
    assert not experience.action_mask.any()
    assert experience.teacher_logprobs.tolist() == experience.logprobs.tolist() != []


async def test_a_distilled_answer_may_be_scored(task: Task) -> None:
    policy = beside(FakeEngine(), "so it is \\boxed{42}")
    (boxed,) = await run(task("on_policy_distill_math_workflow"), policy)
    assert (boxed.reward, boxed.metrics["accuracy"]) == (1.0, 1.0)
    assert boxed.prompt_text.startswith(
        "system: You are a helpful assistant.\nuser: What is 6*7?\nPlease reason step by"
    )
    (named,) = await run(task("on_policy_distill_workflow", reward_fn="exact_match_reward"), beside(FakeEngine(), "42"))
    assert named.reward == 1.0


CALLS = [{"name": "mail", "arguments": {"to": "Bob", "cc": []}}, {"name": "shop", "arguments": {"item": "banana"}}]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        (f"<think>a</think><tool_call>{json.dumps(CALLS)}</tool_call>", 1.0),
        (f"<think>a</think><tool_call>{json.dumps(CALLS[::-1])}</tool_call>", 1.0),
        (f"<think>a</think><tool_call>{json.dumps(CALLS[:1])}</tool_call>", 0.0),
        (f"<tool_call>{json.dumps(CALLS)}</tool_call><think>a</think>", 0.0),
        (f"<tool_call>{json.dumps(CALLS)}</tool_call>", 0.0),
        (f"<think>a</think><think>b</think><tool_call>{json.dumps(CALLS)}</tool_call>", 0.0),
        ("<think>a</think><tool_call>[{}]</tool_call>", 0.0),
        ("<think>a</think><tool_call>mail()</tool_call>", 0.0),
        (f"<think>a</think>{json.dumps(CALLS)}", 0.0),
    ],
)
async def test_the_right_calls_of_tools_in_any_order_are_rewarded(task: Task, reply: str, reward: float) -> None:
    row = {
        "raw_system": "You help. ",
        "tools": json.dumps([{"name": "mail", "parameters": {}}]),
        "conversations": [{"from": "human", "value": "Tell Bob."}, {"from": "observation", "value": "sent"}],
        "answer": json.dumps(CALLS),
    }
    policy = Policy(FakeEngine(lines=[reply]), Sampling(max_tokens=500))
    (experience,) = await run(task("tool_call_workflow", row=row), policy)
    assert experience.reward == reward
    assert experience.metrics == {"accuracy": reward}
    assert '{"type": "function", "function": {"name": "mail", "parameters": {}}}' in experience.prompt_text
    assert experience.prompt_text.endswith("user: Tell Bob.\ntool: sent\nassistant: ")


async def test_a_single_call_needs_no_list(task: Task) -> None:
    row = {"tools": [], "conversations": [{"from": "user", "value": "Go."}], "answer": CALLS[:1]}
    reply = f"<think>a</think><tool_call>{json.dumps(CALLS[0])}</tool_call>"
    policy = Policy(FakeEngine(lines=[reply]), Sampling(max_tokens=500))
    (experience,) = await run(task("tool_call_workflow", row=row), policy)
    assert experience.reward == 1.0


async def test_mathematics_is_evaluated_with_the_sampling_of_the_evaluation(task: Task) -> None:
    policy = Policy(FakeEngine(lines=["The answer is 42."]), Sampling(max_tokens=500, temperature=1.0))
    (experience,) = await run(task("async_math_eval_workflow"), policy)
    assert (experience.reward, experience.temperature) == (1.0, 0.6)
    assert experience.prompt_text.endswith("within \\boxed{}.\nassistant: ")
    (greedy,) = await run(task("math_eval_workflow", workflow_args={"temperature": 0.0}), policy)
    assert greedy.temperature == 0.0
