"""Workflows of several turns: what is learned from an episode, and how environments are told and acted on."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.rollout.environment import Observation
from services.rollout.errors import EpisodeInvalid
from services.rollout.frozen_lake import drawn_lake, steps_to_goal
from services.rollout.gymnasium_environment import GymnasiumWorkflow, chosen_of, number_below
from services.rollout.multi_turn import MultiTurnWorkflow, RewardPropagationWorkflow, StepWiseRewardWorkflow
from services.rollout.policy import Policy, Prompting
from services.rollout.runner import answer
from services.rollout.sudoku import is_valid, moves_of
from services.rollout.workflows import workflow_named

Task = Callable[..., TaskReleased]
LAKE = ["SFF", "HHF", "FFG"]
PUZZLE = [[2, 0, 0, 3], [0, 0, 1, 0], [1, 0, 3, 0], [3, 0, 2, 1]]


def saying(*lines: str, **prompting: Any) -> Policy:
    return Policy(FakeEngine(lines=lines), Sampling(max_tokens=200), Prompting(**prompting))


class Counting:
    """Adds up the numbers that it is told. Over at 5, with a reward of 1; each step costs a tenth."""

    def __init__(self) -> None:
        self.total = 0
        self.is_closed = False

    def reset(self) -> Observation:
        return Observation("0", state="0")

    def step(self, reply: str) -> Observation:
        self.total += int(reply)
        is_over = self.total >= 5
        return Observation(
            str(self.total), float(is_over) - 0.1, is_over, str(self.total), {"total": float(self.total)}
        )

    def close(self) -> None:
        self.is_closed = True


class Whole(MultiTurnWorkflow):
    def __init__(self) -> None:
        self.worlds: list[Counting] = []

    def environment(self, task: TaskReleased, position: int) -> Counting:
        self.worlds.append(Counting())
        return self.worlds[-1]


class ByStep(Whole, StepWiseRewardWorkflow):
    experiences = StepWiseRewardWorkflow.experiences


class Propagated(Whole, RewardPropagationWorkflow):
    experiences = RewardPropagationWorkflow.experiences
    reward = RewardPropagationWorkflow.reward


async def played(workflow: Any, task: TaskReleased, policy: Policy) -> tuple[Experience, ...]:
    return await answer(task, workflow, policy, max_retry_times=0, max_timeout_s=30)


async def test_a_whole_episode_is_one_experience_with_the_sum_of_its_rewards(released_task: Task) -> None:
    workflow = Whole()
    (experience,) = await played(workflow, released_task(), saying("2", "3"))
    assert experience.reward == pytest.approx(0.8)
    assert experience.metrics == {"env_steps": 2.0, "env_done": 1.0, "total": 5.0}
    assert experience.prompt_text == "user: 0\nassistant: "
    assert experience.response_text == "2\nuser: 2\nassistant: 3"
    assert experience.action_mask.sum() == 2
    assert [world.is_closed for world in workflow.worlds] == [True]


async def test_each_turn_has_its_own_reward(released_task: Task) -> None:
    first, second = await played(ByStep(), released_task(), saying("2", "3"))
    assert [first.reward, second.reward] == pytest.approx([-0.1, 0.9])
    assert [first.step_reward, second.step_reward] == pytest.approx([-0.1, 0.9])
    assert [(each.step, each.state, each.response_text) for each in (first, second)] == [(0, "0", "2"), (1, "2", "3")]
    assert second.prompt_text == "user: 0\nassistant: 2\nuser: 2\nassistant: "
    assert second.metrics["actual_env_steps"] == 2.0


async def test_each_turn_has_the_reward_of_the_episode(released_task: Task) -> None:
    first, second = await played(Propagated(), released_task(), saying("2", "3"))
    assert [first.reward, second.reward] == pytest.approx([0.8, 0.8])
    assert [first.step_reward, second.step_reward] == pytest.approx([-0.1, 0.9])


async def test_an_episode_ends_after_the_turns_that_are_allowed(released_task: Task) -> None:
    task = released_task(workflow_args={"max_turns": 3})
    (experience,) = await played(Whole(), task, saying("1"))
    assert experience.metrics == {"env_steps": 3.0, "env_done": 0.0, "total": 3.0}
    assert experience.reward == pytest.approx(-0.3)


async def test_an_episode_without_room_to_go_on_has_no_reward(released_task: Task) -> None:
    (experience,) = await played(Whole(), released_task(), saying("1", max_model_len=40))
    assert experience.is_truncated
    assert experience.reward == 0.0
    assert experience.metrics["env_done"] == 0.0


async def test_the_configurations_system_prompt_opens_an_episode(released_task: Task) -> None:
    task = released_task(format_args={"system_prompt": "Count."})
    (experience,) = await played(Whole(), task, saying("5"))
    assert experience.prompt_text == "system: Count.\nuser: 0\nassistant: "


async def test_the_goal_of_the_frozen_lake_is_reached_by_the_steps_that_lead_there(released_task: Task) -> None:
    task = released_task(workflow="frozen_lake_workflow", workflow_args={"desc": LAKE}, row={})
    replies = ("I go ```right```", "```Right```", "no step", "```down```", "```Down```")
    (experience,) = await played(workflow_named(task.workflow), task, saying(*replies))
    assert experience.reward == 1.0
    assert experience.metrics == {"env_steps": 5.0, "env_done": 1.0, "test_score": 1.0, "action_is_effective": 1.0}
    assert "user: The lake:\nP _ _\nO O _\n_ _ G\nSteps left: 8\n" in experience.prompt_text
    assert "Your reply named no step. The lake:\n_ _ P\n" in experience.response_text


@pytest.mark.parametrize(("replies", "drawn"), [(["```Down```"], None), (["```Left```"], "P _ _")])
async def test_the_frozen_lake_gives_nothing_without_its_goal(
    released_task: Task, replies: Sequence[str], drawn: str | None
) -> None:
    arguments = {"desc": LAKE, "env_max_steps": 2}
    task = released_task(workflow="frozen_lake_workflow", workflow_args=arguments, row={})
    (experience,) = await played(workflow_named(task.workflow), task, saying(*replies))
    assert experience.reward == 0.0
    assert experience.metrics["env_done"] == 1.0
    assert experience.metrics["env_steps"] == (2.0 if drawn else 1.0)


def test_a_drawn_lake_is_the_same_for_its_seed_and_can_be_crossed() -> None:
    lakes = [drawn_lake(4, 0.7, seed, 6) for seed in range(20)]
    assert lakes == [drawn_lake(4, 0.7, seed, 6) for seed in range(20)]
    assert len({tuple(lake) for lake in lakes}) == 20
    assert all(1 <= (steps_to_goal(lake) or 99) <= 6 for lake in lakes)
    assert steps_to_goal(["SH", "HG"]) is None
    with pytest.raises(EpisodeInvalid, match="size 1 has no room"):
        drawn_lake(1, 0.8, 0, 8)
    with pytest.raises(EpisodeInvalid, match="raise p or env_max_steps"):
        drawn_lake(4, 0.8, 0, 0)


async def test_a_sudoku_is_solved_move_by_move(released_task: Task) -> None:
    task = released_task(workflow="sudoku_workflow", row={"metadata": {"puzzle": PUZZLE}})
    policy = saying("0 1 1\n0 2 4\n1 0 4\n1 1 3\n1 3 2", "2 1 2\n2 3 4\n3 1 4")
    first, second = await played(workflow_named(task.workflow), task, policy)
    assert [first.reward, second.reward] == [0.0, 1.0]
    assert first.state == "2 0 0 3\n0 0 1 0\n1 0 3 0\n3 0 2 1"
    assert second.state == "2 1 4 3\n4 3 1 2\n1 0 3 0\n3 0 2 1"
    assert second.metrics["solved"] == 1.0
    assert "a board of 4 x 4 cells" in first.prompt_text


@pytest.mark.parametrize("reply", ["0 0 1", "0 1 3", "0 1", "0 1 1\n" * 6, "9 9 9", "row 0 column 1"])
async def test_a_move_against_the_rules_ends_the_sudoku(released_task: Task, reply: str) -> None:
    task = released_task(workflow="sudoku_workflow", row={"puzzle": PUZZLE})
    (experience,) = await played(workflow_named(task.workflow), task, saying(reply))
    assert experience.reward == -1.0


async def test_a_row_without_a_puzzle_is_refused(released_task: Task) -> None:
    with pytest.raises(EpisodeInvalid, match="holds no square board under 'puzzle'"):
        await workflow_named("sudoku_workflow").episode(released_task(), saying("x"), 0)  # type: ignore[union-attr]


def test_sudoku_moves_and_rules() -> None:
    assert moves_of(" 0 1 2\n\n3 3 4 ", 4, 5) == [(0, 1, 2), (3, 3, 4)]
    assert moves_of("0 1 5", 4, 5) is None
    assert is_valid(PUZZLE)
    assert not is_valid([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])  # in one block
    assert not is_valid([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])  # in one column


async def test_any_discrete_gymnasium_environment_can_be_played(released_task: Task) -> None:
    arguments = {
        "env_id": "FrozenLake-v1",
        "env_args": {"desc": LAKE, "is_slippery": False, "render_mode": "ansi"},
        "actions": ["left", "down", "right", "up"],
        "max_turns": 6,
        "penalty": -0.5,
    }
    task = released_task(workflow="gymnasium_step_workflow", workflow_args=arguments, row={})
    replies = ("```right```", "what?", "right", "```DOWN```", "```down```")
    steps = await played(workflow_named(task.workflow), task, saying(*replies))
    assert [step.reward for step in steps] == [0.0, -0.5, 0.0, 0.0, 1.0]
    assert "[S]FF\nHHF\nFFG" in steps[0].prompt_text
    assert "one action between ``` and ```: left, down, right, up" in steps[0].prompt_text
    assert "That was no action." in steps[2].prompt_text
    assert [step.state.split("\n")[1] for step in steps][1] == "S[F]F"


async def test_a_gymnasium_task_is_the_same_for_all_its_answers(released_task: Task) -> None:
    arguments = {"env_id": "Taxi-v4", "max_turns": 1}
    task = released_task(workflow="gymnasium_workflow", workflow_args=arguments, row={"seed": 5}, repeat_times=2)
    first, second = await played(workflow_named(task.workflow), task, saying("```0```"))
    other = released_task(workflow="gymnasium_workflow", workflow_args=arguments, row={"seed": 6})
    (third,) = await played(workflow_named(task.workflow), other, saying("```0```"))
    assert first.prompt_text == second.prompt_text
    assert third.prompt_text != first.prompt_text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs workflow_args.env_id"),
        ({"env_id": "NoSuchThing-v0"}, "env_id=NoSuchThing-v0: .*doesn't exist"),
        ({"env_id": "Pendulum-v1"}, "is no discrete space: derive from GymnasiumWorkflow"),
        ({"env_id": "FrozenLake-v1", "actions": ["left"]}, "names 1 actions of 4"),
    ],
)
async def test_an_environment_that_cannot_be_played_is_refused(
    released_task: Task, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(EpisodeInvalid, match=message):
        await GymnasiumWorkflow().episode(released_task(workflow_args=arguments, row={}), saying("0"), 0)


class Doubling(gymnasium.Env[int, float]):
    """An environment of one's own, with a continuous action."""

    action_space = gymnasium.spaces.Box(0.0, 1.0)
    observation_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: float) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 1, 2 * action, True, False, {}


class DoublingWorkflow(GymnasiumWorkflow):
    def made(self, task: TaskReleased) -> Any:
        return Doubling()

    def read(self, task: TaskReleased, env: Any) -> Any:
        return float


async def test_adaptors_of_ones_own_open_any_space(released_task: Task) -> None:
    (experience,) = await played(DoublingWorkflow(), released_task(row={}), saying("0.25"))
    assert experience.reward == 0.5


def test_actions_are_read_from_the_last_fence_or_line() -> None:
    assert chosen_of(["up", "down"])("first ```up```, no: ```Down```") == 1
    assert chosen_of(["up", "down"])("I think\nup") == 0
    assert chosen_of(["up"])("") is None
    assert number_below(3)("```2```") == 2
    assert number_below(3)("```3```") is None
