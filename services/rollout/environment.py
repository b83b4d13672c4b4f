"""The port of an environment: a world that is told in words, and that the policy acts on in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Observation:
    """What the policy is told after a step, or at the start.

    `reward` is that of the step which led here. `state` names where the policy now is: equal states have equal names.
    """

    text: str
    reward: float = 0.0
    is_over: bool = False
    state: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode's world. Its methods run in a thread, one after the other, so they may block."""

    def reset(self) -> Observation:
        """The start of the episode. Called once."""

    def step(self, reply: str) -> Observation:
        """What follows from the policy's reply, whatever it is: an action that cannot be read has consequences too."""

    def close(self) -> None: ...
