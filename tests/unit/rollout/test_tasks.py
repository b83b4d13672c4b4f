"""A released task says all that an explorer needs."""

from typing import Any

from schemas.codec import decode, encode
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.rollout.config import TasksetConfig
from services.rollout.prompts import truth_of
from services.rollout.tasks import released

IDENTITY = TaskIdentity(ordinal=9, batch=2, taskset="sums", epoch=1, index=4)


def release(row: dict[str, Any], **settings: Any) -> TaskReleased:
    return released(
        TasksetConfig.model_validate(settings),
        row,
        IDENTITY,
        run="p/n",
        repeat_times=8,
        rollout_args={"temperature": 1.0, "max_tokens": 64},
        floor=WeightVersion(version=3),
        batch_tasks=4,
        released_at=12.5,
    )


def test_a_task_carries_row_pace_and_arguments_over_the_wire() -> None:
    task = release({"prompt": "1+1=", "answer": 2}, workflow_args={"with_think": True}, format={"reply_prefix": "x"})
    assert decode(encode(task)) == task
    assert task.task == IDENTITY
    assert task.row == {"prompt": "1+1=", "answer": 2}
    assert (task.repeat_times, task.floor.version, task.batch_tasks, task.released_at) == (8, 3, 4, 12.5)
    assert task.workflow_args == {"with_think": True}
    assert task.format_args["reply_prefix"] == "x"


def test_the_tasksets_sampling_arguments_go_before_the_defaults() -> None:
    task = release({"prompt": ""}, rollout_args={"temperature": 0.2, "stop": ["\n"]})
    assert task.rollout_args == {"temperature": 0.2, "max_tokens": 64, "stop": ["\n"]}


def test_a_row_may_name_its_own_workflow_and_reward() -> None:
    settings = {
        "default_workflow_type": "simple_workflow",
        "default_reward_fn_type": "math_reward",
        "format": {"workflow_key": "how", "reward_fn_key": "judge"},
    }
    own = release({"how": "math_boxed_workflow", "judge": "countdown_reward"}, **settings)
    assert (own.workflow, own.reward_fn) == ("math_boxed_workflow", "countdown_reward")
    common = release({"how": "", "judge": None}, **settings)
    assert (common.workflow, common.reward_fn) == ("simple_workflow", "math_reward")


def test_without_a_name_the_workflow_is_maths() -> None:
    task = release({"prompt": ""})
    assert (task.workflow, task.reward_fn) == ("math_workflow", None)


def test_the_true_answer_may_lie_below_a_column() -> None:
    row = {"prompt": "1+1=", "reward_model": {"style": "rule", "ground_truth": 2}, "a.b": "flat"}

    def truth(key: str) -> str:
        return truth_of(release(row, format={"response_key": key}))

    assert truth("reward_model.ground_truth") == "2"
    assert truth("a.b") == "flat"
    assert truth("reward_model.ground_truth.deeper") == ""
    assert truth("nowhere.at_all") == ""
