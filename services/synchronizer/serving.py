"""What a run that serves releases: one task for each group of conversations that is finished, and no other."""

from bus.port import Bus
from schemas.serving import ConversationsFinished
from services.rollout.errors import TasksetError
from services.rollout.mixture import Mixture
from services.rollout.served import SERVED
from services.runtime.keys import FINISHED

ENDLESS = 2**40
"""Tasks of a run whose end nobody has set."""

NO_TASKSETS = (
    "this run serves conversations, and takes no tasksets: start the explorer under another name, or with `mode: serve`"
)


async def groups_finished(bus: Bus) -> int:
    """The groups that all histories of the run have finished since they began."""
    told = [entry.message for entry in await bus.entries(FINISHED)]
    return sum(each.groups for each in told if isinstance(each, ConversationsFinished))


def assert_served_alone(mixture: Mixture) -> None:
    """Raises `TasksetError` where a run that is to serve has tasksets to explore: their pace would wait for users."""
    others = [taskset.name for taskset in mixture.tasksets if taskset.name != SERVED]
    if others:
        said = f"this run explores {', '.join(others)}, and cannot serve conversations too: serve under another name"
        raise TasksetError(SERVED, said)
