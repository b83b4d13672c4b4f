"""Does a replay equal the original? The run is trained again from its stream in a scratch run, and all that both have
written is compared."""

import os
import shutil
from collections.abc import Sequence

from rich.console import Console

from bus.subjects import Stream
from services.config.load import ENVIRONMENT
from services.config.tree import RunConfig
from services.launcher.launch import launch
from services.replay.comparison import Finding, compared_directories
from services.replay.errors import ReplayError
from services.replay.lineage import Written, surviving, versions_in
from services.replay.opening import Source, as_run, source_of
from services.replay.planning import Manner, available_span, free_name, replay_config
from services.replay.replaying import COPY, checkpoints_of, lineage_of
from services.replay.span import Span, checkpoint_at
from services.trainer.committing import newest_on_disk


async def verify(
    config: RunConfig, from_step: int | None, to_step: int | None, keep: bool, console: Console
) -> list[Finding]:
    """Replay the run of `config` from checkpoint `from_step` (0 or None: its start) to `to_step` (None: its newest
    checkpoint), and compare every version and the checkpoint at the end.

    Raises:
        ReplayError: a checkpoint or the stream that this needs is not there, or the replay failed.
    """
    scratch = as_run(config, free_name(config, f"{config.name}-verify"))
    # A shared bus would keep the streams of the scratch run; a child would join it by its environment.
    os.environ.pop(ENVIRONMENT["bus.url"][0], None)
    try:
        async with source_of(config, scratch.run_dir / COPY) as source:
            planned = await _planned(config, scratch.name, source, from_step, to_step)
            _tell(planned, console)
            status = await launch(planned, console)
            if status != 0:
                raise ReplayError(f"the replay ended with status {status}: see {planned.run_dir / 'log'} (--keep)")
            return compared_runs(
                config, surviving(versions_in(config.run_dir / "weights"), await lineage_of(source)), planned
            )
    finally:
        if not keep:
            shutil.rmtree(scratch.run_dir, ignore_errors=True)


def compared_runs(original: RunConfig, versions: Sequence[Written], replayed: RunConfig) -> list[Finding]:
    """The versions of the original within the replayed steps, and the checkpoint of the last, against the replay's."""
    assert replayed.replay is not None
    begin, end = _first_step(replayed), replayed.replay.to_step or 0
    again = {version.step: version for version in _versions(replayed)}
    findings = [
        _compared_version(version, again.get(version.step)) for version in versions if begin <= version.step <= end
    ]
    name = f"global_step_{end}"
    pair = original.run_dir / name / "actor", replayed.run_dir / name / "actor"
    return [*findings, compared_directories(f"checkpoint {end}, model and optimizer", *pair)]


def _compared_version(version: Written, again: Written | None) -> Finding:
    what = f"version {version.step}"
    if again is None:
        return Finding(what, reason="the replay has not announced it")
    return compared_directories(what, version.directory, again.directory)


def _versions(config: RunConfig) -> list[Written]:
    return surviving(versions_in(config.run_dir / "weights"), newest_on_disk(config.run_dir).lineage)


def _first_step(config: RunConfig) -> int:
    assert config.replay is not None
    checkpoint = config.replay.checkpoint
    return 0 if checkpoint is None else int(checkpoint.rpartition("_")[2])


async def _planned(
    config: RunConfig, name: str, source: Source, from_step: int | None, to_step: int | None
) -> RunConfig:
    found = await checkpoints_of(source)
    if not found:
        raise ReplayError(f"run {config.run_name} has no checkpoint to compare with: it was not trained to any")
    end = found[-1] if to_step is None else checkpoint_at(to_step, found)
    begin = checkpoint_at(from_step, found) if from_step else None
    if begin is not None and begin.step >= end.step:
        raise ReplayError(f"nothing lies between step {begin.step} and step {end.step}: begin earlier")
    first = begin.ledger().sequences.floor if begin else 1
    span = available_span(Span(first), await source.bus.state(Stream.EXPERIENCES), True, False)
    manner = Manner(begin, to_step=end.step, short_batches=tuple(found[-1].ledger().short_batches), is_exact=True)
    planned = replay_config(_scratch(config), name, source, span, manner)
    return planned


def _scratch(config: RunConfig) -> RunConfig:
    """The same training, on a bus of its own, with every version kept and no checkpoint on the way."""
    return config.model_copy(
        update={
            "bus": config.bus.model_copy(update={"url": None}),
            "synchronizer": config.synchronizer.model_copy(update={"keep_versions": -1}),
            "trainer": config.trainer.model_copy(update={"save_interval": 0}),
        }
    )


def _tell(planned: RunConfig, console: Console) -> None:
    replay = planned.replay
    assert replay is not None
    begin = _first_step(planned)
    console.print(
        f"training {replay.source} again, from step {begin} to step {replay.to_step}, in {planned.run_dir}",
        highlight=False,
        soft_wrap=True,
    )
