"""FrozenLake: walk over the ice to the goal, and into no hole. On maps whose start and goal lie anywhere."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.tasks import TaskReleased
from services.rollout.environment import Environment, Observation
from services.rollout.errors import EpisodeInvalid
from services.rollout.gymnasium_environment import chosen_of
from services.rollout.multi_turn import MultiTurnWorkflow

ACTIONS = ("Left", "Down", "Right", "Up")
MOST_DRAWS = 10_000
TILES = {"S": "_", "F": "_", "H": "O", "G": "G"}
MEANING = """\
You are walking on a frozen lake. Reach the goal (G) in as few steps as you can, and do not fall into a hole (O).

Symbols: P you, _ ice, O a hole, G the goal; X is you in a hole, √ you on the goal.
{slippery}
Each turn you are shown the lake. Think, and then give your next step between ``` and ```: one of Left, Down, Right, \
Up. For example, to go up: ```Up```"""
SLIPPERY = "The ice is slippery: you may also go at a right angle to the step that you take."
GRIP = "A step goes where you mean it to go. At the edge you stay where you are."


class FrozenLake:
    """Gymnasium's FrozenLake with a map drawn in text."""

    def __init__(self, lake: Sequence[str], *, is_slippery: bool, seed: int, max_steps: int) -> None:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        self._lake = list(lake)
        self._env: Any = FrozenLakeEnv(desc=self._lake, is_slippery=is_slippery)
        self._seed = seed
        self._left = max_steps
        self._place = 0
        self._read = chosen_of(ACTIONS)

    def reset(self) -> Observation:
        self._place, _ = self._env.reset(seed=self._seed)
        return Observation(self._shown(), state=self._drawn())

    def step(self, reply: str) -> Observation:
        action = self._read(reply)
        self._left -= 1
        reward, is_over, before = 0.0, False, self._place
        if action is not None:
            self._place, reward, is_over, _, _ = self._env.step(action)
        metrics = {"test_score": float(reward), "action_is_effective": float(self._place != before)}
        note = "" if action is not None else "Your reply named no step. "
        return Observation(
            note + self._shown(), float(reward), is_over or self._left <= 0, state=self._drawn(), metrics=metrics
        )

    def close(self) -> None:
        self._env.close()

    def _shown(self) -> str:
        return f"The lake:\n{self._drawn()}\nSteps left: {self._left}"

    def _drawn(self) -> str:
        width = len(self._lake[0])
        tiles = [TILES[tile] for row in self._lake for tile in row]
        tiles[self._place] = {"O": "X", "G": "√"}.get(tiles[self._place], "P")
        return "\n".join(" ".join(tiles[start : start + width]) for start in range(0, len(tiles), width))


class FrozenLakeWorkflow(MultiTurnWorkflow):
    """One episode on the lake. The reward is 1 at the goal, and 0 anywhere else.

    `workflow_args`: `env_max_steps` (8, also the longest shortest way of a map), `agent_max_steps` (10, replies),
    `is_slippery` (false), `desc` (a map of rows of S, F, H, G in place of drawn ones). A row may hold `size` (4), `p`
    (0.8, the share of ice) and `seed` (its index), which draw the map.
    """

    def environment(self, task: TaskReleased, position: int) -> Environment:
        arguments, row = task.workflow_args, task.row
        max_steps = int(arguments.get("env_max_steps", 8))
        seed = int(row.get("seed", task.task.index))
        lake = arguments.get("desc") or drawn_lake(int(row.get("size", 4)), float(row.get("p", 0.8)), seed, max_steps)
        return FrozenLake(lake, is_slippery=bool(arguments.get("is_slippery", False)), seed=seed, max_steps=max_steps)

    def system_prompt(self, task: TaskReleased) -> str | None:
        return MEANING.format(slippery=SLIPPERY if task.workflow_args.get("is_slippery") else GRIP)

    def max_turns(self, task: TaskReleased) -> int:
        return int(task.workflow_args.get("agent_max_steps", 10))


def drawn_lake(size: int, ice: float, seed: int, max_steps: int) -> list[str]:
    """A map of `size` x `size` tiles of which a share `ice` is frozen, the same for the same seed.

    Start and goal lie anywhere apart, with a way of at most `max_steps` steps between them.

    Raises:
        EpisodeInvalid: there is no such map, or none was found in many draws.
    """
    if size < 2:
        raise EpisodeInvalid(f"a lake of size {size} has no room for a start and a goal: use 2 or more")
    chance = np.random.default_rng(seed)
    for _ in range(MOST_DRAWS):
        tiles = np.where(chance.random((size, size)) < ice, "F", "H")
        start, goal = chance.choice(size * size, size=2, replace=False)
        tiles.flat[start], tiles.flat[goal] = "S", "G"
        lake = ["".join(row) for row in tiles]
        way = steps_to_goal(lake)
        if way is not None and way <= max_steps:
            return lake
    raise EpisodeInvalid(
        f"no lake of size {size} with p={ice} and a way of {max_steps} steps: raise p or env_max_steps"
    )


def steps_to_goal(lake: Sequence[str]) -> int | None:
    """The steps of the shortest way from S to G over no hole; None where there is no way."""
    places = {(row, column): tile for row, line in enumerate(lake) for column, tile in enumerate(line)}
    start = next(place for place, tile in places.items() if tile == "S")
    waiting, seen = deque([(start, 0)]), {start}
    while waiting:
        (row, column), steps = waiting.popleft()
        if places[row, column] == "G":
            return steps
        for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if places.get(near, "H") != "H" and near not in seen:
                seen.add(near)
                waiting.append((near, steps + 1))
    return None
