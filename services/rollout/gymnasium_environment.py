"""Any Gymnasium environment as a conversation: its observations in words, and the policy's words as its actions.

`gymnasium_workflow` takes an environment by its id, such as `FrozenLake-v1`. How observations are told and replies are
read is chosen by `workflow_args`; for other spaces, derive from `GymnasiumWorkflow`.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from schemas.tasks import TaskReleased
from services.rollout.environment import Environment, Observation
from services.rollout.errors import EpisodeInvalid
from services.rollout.multi_turn import MultiTurnWorkflow, RewardPropagationWorkflow, StepWiseRewardWorkflow

if TYPE_CHECKING:
    import gymnasium

Told = Callable[["gymnasium.Env[Any, Any]", Any], str]
"""From the environment and an observation to words."""

Read = Callable[[str], Any]
"""From a reply to an action; None where it holds none."""

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
_NOT_READ = "That was no action. "


class GymnasiumEnvironment:
    """Steps a Gymnasium environment. A reply without an action changes nothing, and costs `penalty`."""

    def __init__(
        self, env: "gymnasium.Env[Any, Any]", told: Told, read: Read, *, seed: int, penalty: float = 0.0
    ) -> None:
        self._env = env
        self._told = told
        self._read = read
        self._seed = seed
        self._penalty = penalty
        self._last = ""

    def reset(self) -> Observation:
        found, _ = self._env.reset(seed=self._seed)
        self._last = self._told(self._env, found)
        return Observation(self._last, state=self._last)

    def step(self, reply: str) -> Observation:
        action = self._read(reply)
        if action is None:
            return Observation(_NOT_READ + self._last, self._penalty, state=self._last, metrics={"action_read": 0.0})
        found, reward, is_terminated, is_cut, _ = self._env.step(action)
        self._last = self._told(self._env, found)
        return Observation(
            self._last,
            float(reward),
            is_over=is_terminated or is_cut,
            state=self._last,
            metrics={"action_read": 1.0},
        )

    def close(self) -> None:
        self._env.close()


def last_fenced(reply: str) -> str:
    """What stands between the last pair of three backquotes, else the last line."""
    fenced = _FENCED.findall(reply)
    lines = fenced[-1:] or reply.strip().splitlines()[-1:]
    return str(lines[0]).strip() if lines else ""


def chosen_of(actions: Sequence[str]) -> Read:
    """Reads the name of one of `actions`, whatever its case; the action is its place in the list."""
    places = {name.lower(): place for place, name in enumerate(actions)}

    def read(reply: str) -> int | None:
        return places.get(last_fenced(reply).lower())

    return read


def number_below(size: int) -> Read:
    """Reads a number from 0 below `size`."""

    def read(reply: str) -> int | None:
        said = last_fenced(reply)
        return int(said) if said.isdecimal() and int(said) < size else None

    return read


def as_drawn(env: "gymnasium.Env[Any, Any]", found: Any) -> str:
    """What the environment draws in text (`render_mode: ansi`), else the observation as Python writes it."""
    drawn = env.render() if env.render_mode == "ansi" else None
    return _ESCAPES.sub(_bracketed, str(drawn)) if drawn is not None else str(found)


_ESCAPES = re.compile(r"\x1b\[41m(?P<here>.*?)\x1b\[0m")


def _bracketed(found: re.Match[str]) -> str:
    """Where the player is, which a terminal shows by its colour."""
    return f"[{found['here']}]"


class GymnasiumTasks:
    """What the three workflows below share: how a task becomes an environment.

    `workflow_args`: `env_id`, `env_args` of `gymnasium.make`, `actions` (the names of a discrete space's actions),
    `penalty` of a reply without an action, `max_turns`, `instructions`. A row's `env_args` and `seed` go before;
    without a seed, the row's index is one.
    """

    def environment(self, task: TaskReleased, position: int) -> Environment:
        arguments = task.workflow_args
        seed = int(task.row.get("seed", task.task.index))
        env = self.made(task)
        return GymnasiumEnvironment(
            env, self.told(task), self.read(task, env), seed=seed, penalty=float(arguments.get("penalty", 0.0))
        )

    def made(self, task: TaskReleased) -> "gymnasium.Env[Any, Any]":
        """The Gymnasium environment of a task."""
        import gymnasium

        env_id = task.workflow_args.get("env_id")
        if not env_id:
            raise EpisodeInvalid(f"workflow {task.workflow!r} needs workflow_args.env_id, such as FrozenLake-v1")
        arguments = {**task.workflow_args.get("env_args", {}), **(task.row.get("env_args") or {})}
        try:
            return gymnasium.make(env_id, **arguments)
        except (gymnasium.error.Error, TypeError) as error:
            raise EpisodeInvalid(f"workflow_args.env_id={env_id}: {error}") from error

    def told(self, task: TaskReleased) -> Told:
        """How observations are told."""
        return as_drawn

    def read(self, task: TaskReleased, env: "gymnasium.Env[Any, Any]") -> Read:
        """How replies are read."""
        import gymnasium

        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise EpisodeInvalid(
                f"{env.action_space} is no discrete space: derive from GymnasiumWorkflow, and override `read`"
            )
        actions = task.workflow_args.get("actions")
        size = int(env.action_space.n)
        if actions is not None and len(actions) != size:
            raise EpisodeInvalid(f"workflow_args.actions names {len(actions)} actions of {size}")
        return chosen_of([str(name) for name in actions]) if actions else number_below(size)

    def system_prompt(self, task: TaskReleased) -> str | None:
        given = task.workflow_args.get("instructions")
        if given:
            return str(given)
        names = task.workflow_args.get("actions")
        choice = ", ".join(map(str, names)) if names else "its number"
        return (
            f"You act in the environment {task.workflow_args.get('env_id')}. Each turn you are told what you observe. "
            f"Think, and then give one action between ``` and ```: {choice}."
        )


class GymnasiumWorkflow(GymnasiumTasks, MultiTurnWorkflow):
    """An episode in a Gymnasium environment as one experience."""


class GymnasiumStepWorkflow(GymnasiumTasks, StepWiseRewardWorkflow):
    """Each step in a Gymnasium environment as an experience with its own reward."""


class GymnasiumPropagationWorkflow(GymnasiumTasks, RewardPropagationWorkflow):
    """Each step in a Gymnasium environment as an experience with the episode's reward."""
