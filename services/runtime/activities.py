"""What a service spends its time on, as spans of wall-clock time. What no span covers was idle."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.reports import Activity, Span


class Activities:
    """Records spans. Overlapping spans of one activity, from concurrent tasks, become one."""

    def __init__(self) -> None:
        self._open: dict[Activity, tuple[int, float]] = {}
        self._closed: list[Span] = []

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        depth, since = self._open.get(activity, (0, time.time()))
        self._open[activity] = (depth + 1, since)
        try:
            yield
        finally:
            self._leave(activity)

    def drain(self) -> tuple[Span, ...]:
        """The spans since the last call; open ones are cut here and go on."""
        now = time.time()
        for activity, (depth, since) in self._open.items():
            self._closed.append(Span(activity=activity, start_s=since, end_s=now))
            self._open[activity] = (depth, now)
        spans, self._closed = tuple(self._closed), []
        return spans

    def _leave(self, activity: Activity) -> None:
        depth, since = self._open.pop(activity)
        if depth > 1:
            self._open[activity] = (depth - 1, since)
        else:
            self._closed.append(Span(activity=activity, start_s=since, end_s=time.time()))
