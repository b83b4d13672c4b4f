"""New rewards for old answers: nothing else of them changes, and what cannot be scored is told before anything is."""

import json
from pathlib import Path

import pytest

from services.replay.errors import ReplayError
from services.replay.rescoring import Rescorer, check_rows, rescored_of, rescorer_of, reward_arguments
from services.replay.span import Span
from services.rollout.config import FormatConfig, TasksetConfig
from services.rollout.tasksets import open_taskset


def _length(answer, weight: float = 1.0):
    return {"length": weight * len(answer.response), "truth": float(answer.truth or -1)}


@pytest.fixture
def tasksets(tmp_path: Path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}", "answer": str(10 * n)}) + "\n" for n in range(4)))
    layout = FormatConfig(prompt_key="prompt", response_key="answer")
    return {"sums": open_taskset(TasksetConfig(name="sums", path=str(path), format=layout))}


def test_only_rewards_metrics_and_the_run_change(group, tasksets) -> None:
    past = group(2)
    new = Rescorer("length", _length, {"weight": 3.0}, tasksets).rescored(past, "tests/new")
    assert [experience.reward for experience in new.experiences] == [23.0] * 3
    assert [experience.metrics for experience in new.experiences] == [{"length": 3.0, "truth": 20.0}] * 3
    kept = [
        fresh.model_copy(update={"reward": old.reward, "metrics": old.metrics})
        for fresh, old in zip(new.experiences, past.experiences, strict=True)
    ]
    assert new.model_copy(update={"run": past.run, "experiences": tuple(kept)}) == past


def test_an_answer_to_a_truncated_prompt_keeps_its_reward(group, tasksets) -> None:
    past = group(1, size=1)
    cut = past.experiences[0].model_copy(update={"reward": 0.0, "metrics": {"prompt_truncated": 1.0}})
    new = Rescorer("length", _length, {}, tasksets).rescored(past.model_copy(update={"experiences": (cut,)}), "tests/n")
    assert new.experiences == (cut,)


def test_a_task_without_its_taskset_or_row_is_named(group, tasksets) -> None:
    rescorer = Rescorer("length", _length, {}, tasksets)
    with pytest.raises(ReplayError, match=r"task summs/1/0 is of taskset 'summs'.*did you mean 'sums'"):
        rescorer.row(group(0, taskset="summs").task)
    with pytest.raises(ReplayError, match=r"task sums/1/4: taskset 'sums' has no row 4: it has 4"):
        rescorer.row(group(4).task)


def test_a_reward_that_fails_is_told_with_its_task(group, tasksets) -> None:
    def broken(answer):
        raise KeyError("solution")

    with pytest.raises(ReplayError, match=r"reward 'broken' fails on task sums/1/1, position 0: KeyError: 'solution'"):
        Rescorer("broken", broken, {}, tasksets).rescored(group(1), "tests/new")
    with pytest.raises(ReplayError, match="not all finite"):
        Rescorer("nan", lambda answer: {"score": float("nan")}, {}, tasksets).rescored(group(1), "tests/new")


async def test_the_new_stream_has_the_same_answers_in_the_same_order(join, group, abandoned, tasksets) -> None:
    past = await join("tests/past")
    for answer in (group(0), abandoned(1), group(2), group(3)):
        await past.publish(answer)
    rescorer = Rescorer("length", _length, {}, tasksets)
    assert await check_rows(past, Span(1, 3), rescorer) == 6
    new = [answer async for answer in rescored_of(past, Span(1, 3), rescorer, "tests/new")]
    assert [answer.task.ordinal for answer in new] == [0, 1, 2]
    assert new[1] == abandoned(1, run="tests/new")


async def test_a_missing_row_is_found_before_anything_is_scored(join, group, tasksets) -> None:
    past = await join("tests/past")
    for ordinal in (0, 7):
        await past.publish(group(ordinal))
    with pytest.raises(ReplayError, match="has no row 7"):
        await check_rows(past, Span(), Rescorer("length", _length, {}, tasksets))


def test_arguments_are_read_as_yaml() -> None:
    assert reward_arguments(["with_think=true", "coef=0.5", "pattern=.*"]) == {
        "with_think": True,
        "coef": 0.5,
        "pattern": ".*",
    }
    with pytest.raises(ReplayError, match="is not NAME=VALUE"):
        reward_arguments(["with_think"])


def test_a_reward_comes_from_a_plug_in_and_takes_only_its_own_arguments(config, tmp_path: Path) -> None:
    from services.config.tree import RunConfig

    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "brevity_of_replay_tests.py").write_text(
        "from services.rollout.rewards import register_reward\n"
        "@register_reward('brevity')\n"
        "def brevity(answer, weight=1.0):\n    return {'brevity': -weight * len(answer.response)}\n"
    )
    chosen = RunConfig.model_validate(config | {"plugin_dirs": [str(plugins)]})
    assert rescorer_of(chosen, "brevity", {"weight": 2.0}).name == "brevity"
    with pytest.raises(ReplayError, match="'brevity' does not take these --reward-args"):
        rescorer_of(chosen, "brevity", {"wait": 2.0})
    with pytest.raises(ReplayError, match="unknown reward 'brevty'"):
        rescorer_of(chosen, "brevty", {})
