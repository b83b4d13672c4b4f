"""What a step tells of reuse."""

from services.trainer.reuse.pool import Drawn

PREFIX = "replay_buffer"


def of_reuse(drawn: Drawn) -> dict[str, float]:
    """The metrics of what a step has trained on again, and of what it has left for others, in experiences."""
    return {
        f"{PREFIX}/reused_count": float(drawn.experiences),
        f"{PREFIX}/experience_count": float(drawn.pool.experiences),
        f"{PREFIX}/retired_count": float(drawn.retired),
        f"{PREFIX}/evicted_count": float(drawn.evicted),
    }
