"""The port of a workflow: from one released task to one of its answers, scored."""

from collections.abc import Sequence
from typing import Protocol

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.policy import Policy


class Workflow(Protocol):
    """How a task is answered. One object may answer many tasks at once, so it keeps nothing between calls."""

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience | Sequence[Experience]:
        """Answer `task` once: one experience, or one for each step. All carry `position`; steps count from 0."""
