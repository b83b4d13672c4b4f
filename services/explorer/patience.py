"""How long an attempt at a task may take, by how long the answered ones took. Pure but for what it remembers.

Invariant: no task is given up for being slow: only its first delivery has the shorter limit.
"""

from services.explorer.config import DynamicTimeoutConfig


class Patience:
    """The limit of one explorer: `ratio` times the mean time of the tasks that it has answered, at most
    `max_timeout_s`.

    It holds once this explorer has answered tasks of `warmup_min_steps` batches before the task's own.
    """

    def __init__(self, settings: DynamicTimeoutConfig, max_timeout_s: float) -> None:
        self._settings = settings
        self._max_timeout_s = max_timeout_s
        self._batches: list[int] = []
        self._answered = 0
        self._seconds = 0.0

    def note(self, batch: int, seconds: float) -> None:
        """A task of `batch` was answered in so many seconds."""
        self._answered += 1
        self._seconds += seconds
        if batch not in self._batches:  # of the earliest alone, as many as the warm-up asks for
            self._batches = sorted([*self._batches, batch])[: max(1, self._settings.warmup_min_steps)]

    def limit_s(self, batch: int, attempt: int) -> float:
        """Seconds for each try of a task of `batch`, at its `attempt`-th delivery (from 1)."""
        before = sum(other < batch for other in self._batches)
        is_warm = self._answered > 0 and before >= self._settings.warmup_min_steps
        if not self._settings.enable or not is_warm or attempt > 1:
            return self._max_timeout_s
        return min(self._max_timeout_s, self._settings.ratio * self._seconds / self._answered)
