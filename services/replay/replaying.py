"""A replay from beginning to end: its source opened, its run planned, its trainer launched and waited for."""

from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from bus.subjects import Stream
from schemas.state import IncarnationTaken, Resumed
from services.config.tree import RunConfig
from services.launcher.launch import launch
from services.replay.errors import ReplayError
from services.replay.opening import Source, as_run, source_of
from services.replay.planning import Manner, available_span, free_name, replay_config
from services.replay.span import WHOLE, Part, checkpoint_at, resolved
from services.runtime.keys import INCARNATION
from services.trainer.checkpoints import Checkpoint, checkpoints
from services.trainer.committing import newest_on_disk

COPY = "source"
"""The directory, within that of the new run, of a copied store."""


@dataclass(frozen=True)
class Wish:
    """What was asked for. `name` None: one after the source's; `is_fresh`: from the configured model, not the
    checkpoint's weights."""

    source: str | None = None
    name: str | None = None
    part: Part = WHOLE
    is_fresh: bool = False
    is_followed: bool = False
    is_live: bool = False
    max_kl: float | None = None


async def replay(config: RunConfig, wish: Wish, console: Console) -> int:
    """Train a new run from a past stream. Returns the exit status of the launcher.

    Raises:
        ReplayError, ConfigError, BusError: it cannot be done as asked.
    """
    source_config = as_run(config, wish.source or config.run_name)
    name = wish.name or free_name(config, f"{source_config.name}-replay")
    target = as_run(config, name)
    if target.run_name == source_config.run_name:
        raise ReplayError(f"{target.run_name} is the source itself: give the new run another name with --as")
    async with source_of(source_config, target.run_dir / COPY) as source:
        planned = await _planned(config, name, source, wish)
        _check_unused(planned)
        _tell(planned, source, console)
        return await launch(planned, console)


async def lineage_of(source: Source) -> tuple[Resumed, ...]:
    """From which steps the trainers of the source have gone on, by its bus, else by its checkpoints."""
    held = await source.bus.get(INCARNATION)
    if held is not None and isinstance(held.message, IncarnationTaken) and held.message.lineage:
        return held.message.lineage
    return newest_on_disk(source.config.run_dir).lineage


async def checkpoints_of(source: Source) -> list[Checkpoint]:
    """The checkpoints of the source that are in force, the oldest first."""
    return checkpoints(source.config.run_dir, await lineage_of(source))


async def _planned(config: RunConfig, name: str, source: Source, wish: Wish) -> RunConfig:
    if wish.is_followed and source.is_served_here:
        raise ReplayError(
            f"run {source.config.run_name} is over (nobody serves its bus), so there is nothing to follow: leave "
            "--follow out"
        )
    found = await checkpoints_of(source)
    span = await resolved(wish.part, found, source.bus.outlines(Stream.EXPERIENCES))
    is_start_given = wish.part.start != WHOLE.start
    span = available_span(span, await source.bus.state(Stream.EXPERIENCES), is_start_given, wish.is_followed)
    begins_at = wish.part.start.step
    checkpoint = checkpoint_at(begins_at, found) if begins_at and not wish.is_fresh else None
    manner = Manner(checkpoint, wish.is_followed, wish.is_live, wish.max_kl)
    return replay_config(config, name, source, span, manner)


def _check_unused(planned: RunConfig) -> None:
    """A directory in use is gone on with when it is that of the same replay, and left alone otherwise.

    Raises:
        ReplayError: it is another run's.
    """
    directory, replay = planned.run_dir, planned.replay
    assert replay is not None
    used = [path for path in directory.iterdir() if path.name != COPY] if directory.is_dir() else []
    if not used:
        return
    before = _replay_before(directory)
    if before is None:
        raise ReplayError(f"{directory} is in use by another run: choose another name with --as")
    for key in ("source", "from_sequence", "checkpoint"):
        if before.get(key, _DEFAULTS[key]) != getattr(replay, key):
            raise ReplayError(
                f"{directory} holds a replay with {key}={before.get(key)}, and this one has "
                f"{key}={getattr(replay, key)}: choose another name with --as"
            )


_DEFAULTS = {"source": None, "from_sequence": 1, "checkpoint": None}


def _replay_before(directory: Path) -> dict[str, object] | None:
    """The section `replay` of the configuration that a launcher has left in a directory."""
    for path in sorted(directory.glob("config*.yaml")):
        section = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("replay")
        if isinstance(section, dict):
            return section
    return None


def _tell(planned: RunConfig, source: Source, console: Console) -> None:
    replay = planned.replay
    assert replay is not None
    until = "as long as it lives" if replay.follow else f"to {replay.to_sequence}"
    begin = f"from {replay.checkpoint}" if replay.checkpoint else f"from the model {planned.model.model_path}"
    for text in (
        f"{planned.run_name} replays {replay.source}, sequences {replay.from_sequence} {until}, {begin}",
        f"its directory: {planned.run_dir}",
        *(("the source is served from a copy of its store",) if source.is_served_here else ()),
    ):
        console.print(text, highlight=False, soft_wrap=True)
