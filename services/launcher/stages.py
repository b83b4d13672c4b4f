"""Stages: one run after the other, each from the weights that the one before has left.

Which stages are over is asked of their own buses and stores each time, so nothing beside them can say otherwise.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from rich.console import Console

from bus.errors import BusRefused
from bus.jetstream import connect
from bus.permissions import Role
from bus.port import Bus
from services.account.snapshot import snapshot
from services.config.checks.lora import the_beginning_fits
from services.config.derive import resolved
from services.config.errors import ConfigError, Problem
from services.config.load import Loaded
from services.config.tree import RunConfig
from services.inference.config import ModelConfig
from services.inference.weights import holds_adapter
from services.launcher.launch import NOW, is_used, launch
from services.runtime.bus_access import join_for_reading, known_url, settings, store_of

log = structlog.get_logger()


@dataclass(frozen=True)
class Place:
    """A stage to work on: its number from 1, and its configuration, with the model that it begins from."""

    number: int
    config: RunConfig
    is_over: bool = False


async def launch_stages(stages: Sequence[Loaded], console: Console) -> int:
    """Run every stage that is not over, in order. Returns the exit status of the first that did not end well, or 0.

    Raises:
        ConfigError: a stage has ended without weights for the next.
    """
    place = await current(stages)
    for done in range(1, place.number + place.is_over):
        console.print(f"stage {done} of {len(stages)} is over", highlight=False)
    while not place.is_over:
        name, model = place.config.run_name, place.config.model.model_path
        console.print(f"stage {place.number} of {len(stages)}: {name}, from {model}", highlight=False, soft_wrap=True)
        status = await launch(place.config, console)
        if status != 0:
            return status
        before, place = place, await current(stages)
        if place.number == before.number and not place.is_over:
            raise ConfigError(name, [Problem("stages", f"{name} has ended without its last weights: see its logs")])
    return 0


def prepared_stages(stages: Sequence[Loaded]) -> list[Loaded]:
    """The stages to start: under another name where one has begun and they are not to be continued."""
    is_begun = any(is_used(stage.config.run_dir) for stage in stages)
    if not is_begun or all(stage.config.continue_from_checkpoint for stage in stages):
        return list(stages)
    suffix = f"_{time.strftime(NOW)}"
    named = [_renamed(stage, suffix) for stage in stages]
    directory = str(named[0].config.run_dir.parent)
    log.info("stages_renamed", directory=directory, reason="they have begun, and continue_from_checkpoint is false")
    return named


def _renamed(stage: Loaded, suffix: str) -> Loaded:
    directory = stage.config.run_dir
    whole = stage.config.name.removesuffix(f"-{directory.name}")
    update = {
        "name": f"{whole}{suffix}-{directory.name}",
        "checkpoint_job_dir": str(directory.parent.with_name(directory.parent.name + suffix) / directory.name),
    }
    return replace(stage, config=stage.config.model_copy(update=update), given=stage.given.model_copy(update=update))


async def current(stages: Sequence[Loaded]) -> Place:
    """The first stage that is not over; where all are, the last."""
    model: Path | None = None
    for number, stage in enumerate(stages, start=1):
        config = from_model(stage, model)
        model = await ending(config)
        if model is None:
            return Place(number, config)
    return Place(len(stages), config, is_over=True)


def from_model(stage: Loaded, model: Path | None) -> RunConfig:
    """The configuration of a stage that begins from the weights in `model`; None: from those that it names itself.

    Raises:
        ConfigError: the weights are an adapter that does not fit the stage.
    """
    if model is None:
        return stage.config
    config = resolved(stage.given.model_copy(update={"model": _begun(stage.given, model)}))
    problems = list(the_beginning_fits(config))
    if problems:
        raise ConfigError(config.run_name, problems)
    return config


def _begun(given: RunConfig, weights: Path) -> ModelConfig:
    if not holds_adapter(weights):
        return given.model.model_copy(update={"model_path": str(weights)})
    lora = given.model.lora
    if lora is None:
        key = "model.lora_configs"
        message = f"{key} is missing: the stage before has trained an adapter, which this one has to go on with"
        raise ConfigError(given.run_name, [Problem(key, message)])
    return given.model.model_copy(update={"lora_configs": [lora.model_copy(update={"path": str(weights)})]})


async def ending(config: RunConfig) -> Path | None:
    """The last weights of a run that is over; None where it is not, or has not begun.

    Raises:
        BusUnavailable: nobody answers at the configured address.
        BusRefused: another process serves the run's store for itself.
    """
    if known_url(config) is not None:
        url, reading = str(known_url(config)), settings(config, Role.READER)
        bus, server = await connect(url, config.run_name, name="stages", settings=reading, observes=True), None
    elif store_of(config.run_dir).is_dir():
        bus, server = await join_for_reading(config, "stages")
    else:
        return None
    try:
        return await _last_weights(config, bus)
    finally:
        await bus.close()
        if server is not None:
            await server.stop()


async def _last_weights(config: RunConfig, bus: Bus) -> Path | None:
    """Of a run that has been given more steps since, there are none yet."""
    try:
        now = await snapshot(bus)
    except BusRefused:
        return None  # a bus that knows nothing of the run
    is_short = config.total_steps is not None and now.step < config.total_steps
    if now.phase != "finished" or is_short or now.newest is None or not now.newest.is_final:
        return None
    weights = Path(now.newest.uri)
    return weights if weights.is_dir() else None
