"""The ports of a workflow: from one released task to its answers, scored."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.policy import Policy


class Workflow(Protocol):
    """How a task is answered. One object may answer many tasks at once, so it keeps nothing between calls.

    A workflow that cannot do without an auxiliary model says so by an attribute `needs_auxiliary_model = True`; then a
    run that has none is refused before it starts.
    """

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience | Sequence[Experience]:
        """Answer `task` once: one experience, or one for each step. All carry `position`; steps count from 0."""


@runtime_checkable
class GroupWorkflow(Protocol):
    """How all answers to a task are made at once, where they have to be seen together, as by a judge of them all."""

    async def group_episodes(self, task: TaskReleased, policy: Policy, repeat_times: int) -> Sequence[Experience]:
        """Answer `task` `repeat_times` times: for each position from 0, one experience, or one for each step.

        `policy.at(position)` is the policy for one of the answers. A try that fails is repeated as a whole.
        """


AnyWorkflow = Workflow | GroupWorkflow
