"""The live view of a run: a table that redraws itself at a terminal, plain lines elsewhere."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.account.snapshot import Snapshot

_TERMINAL_POLL_S = 0.5
_PLAIN_POLL_S = 1.0
_PLAIN_REPEAT_S = 30.0
_RATE_WINDOW_S = 15.0


class View(Protocol):
    """Shows snapshots."""

    def show(self, snapshot: Snapshot) -> None: ...


class Rates:
    """Tokens per second (sampled; where nobody samples, trained) and time left, from the snapshots of a while."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._first_step: tuple[float, int] | None = None

    def take(self, snapshot: Snapshot) -> None:
        self._seen.append((snapshot.at, snapshot.tokens_trained if snapshot.is_unscored else snapshot.tokens_sampled))
        self._seen = [item for item in self._seen if item[0] > snapshot.at - _RATE_WINDOW_S]
        if self._first_step is None and snapshot.step > 0:
            self._first_step = (snapshot.at, snapshot.step)

    def tokens_per_s(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return max(0.0, (after - before) / (end - start)) if end > start else 0.0

    def left_s(self, snapshot: Snapshot) -> float | None:
        """Seconds to the last step, at the pace so far; None while there is none."""
        if self._first_step is None or snapshot.total_steps is None or snapshot.step <= self._first_step[1]:
            return None
        at, step = self._first_step
        return (snapshot.total_steps - snapshot.step) * (snapshot.at - at) / (snapshot.step - step)


class PlainView:
    """One line for each step, and one every while when nothing moves."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._said: tuple[object, ...] = ()
        self._said_at = 0.0

    def show(self, snapshot: Snapshot) -> None:
        self._rates.take(snapshot)
        state = (snapshot.step, snapshot.phase, snapshot.full_streams)
        if state == self._said and time.monotonic() - self._said_at < _PLAIN_REPEAT_S:
            return
        self._said, self._said_at = state, time.monotonic()
        self._console.print(line(snapshot, self._rates), highlight=False, soft_wrap=True, markup=False)
        if snapshot.full_streams:
            for notice in snapshot.notices:
                self._console.print(notice, highlight=False, soft_wrap=True, markup=False)


class TerminalView:
    """A table in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rates = Rates()

    def show(self, snapshot: Snapshot) -> None:
        self._rates.take(snapshot)
        self._live.update(table(snapshot, self._rates), refresh=True)


async def watch(console: Console, ask: Callable[[], Awaitable[Snapshot]]) -> None:
    """Show the run until cancelled."""
    if not console.is_terminal:
        view = PlainView(console)
        while True:
            view.show(await ask())
            await asyncio.sleep(_PLAIN_POLL_S)
    with Live(console=console, auto_refresh=False) as live:
        terminal = TerminalView(live)
        while True:
            terminal.show(await ask())
            await asyncio.sleep(_TERMINAL_POLL_S)


def line(snapshot: Snapshot, rates: Rates) -> str:
    """One line that says where the run is."""
    parts = [
        f"step {snapshot.step}/{_text(snapshot.total_steps)}",
        _success(snapshot),
        f"version {_text(snapshot.newest.weights.version if snapshot.newest else None)}",
        *_ways(snapshot),
        f"{rates.tokens_per_s():.0f} tokens/s",
        f"left {_duration(rates.left_s(snapshot))}",
        snapshot.phase,
    ]
    filtered = sum(snapshot.train.counts.filtered.values()) if snapshot.train else 0
    if filtered:
        parts.append(f"{filtered} filtered")
    if snapshot.quarantined:
        parts.append(f"{snapshot.quarantined} quarantined")
    if snapshot.release and snapshot.release.waiting_for and snapshot.step == 0:
        parts.append(snapshot.release.waiting_for)
    return " · ".join(parts)


def table(snapshot: Snapshot, rates: Rates) -> Table:
    """The live table, members below the numbers."""
    shown = Table(title=f"{snapshot.run} · {snapshot.phase}", min_width=72, expand=False)
    for name in ("service", "state", "version", "tasks"):
        shown.add_column(name)
    for member in sorted(snapshot.members, key=lambda member: (member.service, member.member)):
        shown.add_row(member.member, member.state, str(member.weights.version), str(member.tasks_in_hand))
    shown.caption = Text("\n".join((line(snapshot, rates), *snapshot.notices)))
    shown.caption_justify = "left"
    return shown


def _success(snapshot: Snapshot) -> str:
    """The reward, or, where nothing is scored, the loss."""
    train = snapshot.train
    if snapshot.is_unscored:
        return f"loss {_number(train.loss if train else None)}"
    return f"reward {_number(train.reward if train else None)}"


def _ways(snapshot: Snapshot) -> list[str]:
    """How far experiences are on their way to the trainer; of rows of data, how many have arrived."""
    train = snapshot.train
    if train is not None and snapshot.is_unscored:
        return [f"{train.counts.trained} experiences trained"]
    return [
        f"staleness {_number(train.staleness if train else None)}",
        f"tasks {_depth(snapshot, 'tasks')} experiences {_depth(snapshot, 'experiences')}",
    ]


def _depth(snapshot: Snapshot, stream: str) -> str:
    state = snapshot.streams.get(stream)
    return "-" if state is None else str(state.messages)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
