"""The configuration of a replay: that of an ordinary trainer, with a name of its own and another run as its source."""

import re
from dataclasses import dataclass
from pathlib import Path

from bus.port import StreamState
from services.config.checks.general import violations
from services.config.errors import ConfigError
from services.config.tree import RunConfig
from services.replay.errors import ReplayError
from services.replay.opening import Source, as_run
from services.replay.span import Span
from services.trainer.checkpoints import Checkpoint
from services.trainer.config import ReplayConfig

_SHARD = re.compile(r"^model_world_size_(\d+)_rank_0\.pt$")


@dataclass(frozen=True)
class Manner:
    """How a part of a stream is replayed. `checkpoint` is the one to begin from; `max_kl` None leaves the default."""

    checkpoint: Checkpoint | None = None
    is_followed: bool = False
    is_live: bool = False
    max_kl: float | None = None
    to_step: int | None = None
    short_batches: tuple[int, ...] = ()
    is_exact: bool = False


def free_name(config: RunConfig, stem: str) -> str:
    """`stem`, with a number where runs of that name have left something."""
    number, name = 1, stem
    while as_run(config, name).run_dir.exists():
        number += 1
        name = f"{stem}-{number}"
    return name


def available_span(span: Span, state: StreamState, is_start_given: bool, is_followed: bool) -> Span:
    """The span, where the stream still holds it, with its end where the stream ends; open where it is followed.

    Raises:
        ReplayError: its beginning has been freed, or there is nothing in it.
    """
    first = span.first if is_start_given else max(span.first, state.first)
    if first < state.first:
        raise ReplayError(
            f"sequences {first} to {state.first - 1} of the experience stream have been freed: begin at "
            f"{state.first} or later (buffer.retain decides what is kept)"
        )
    if is_followed:
        return Span(first, None)
    last = state.last if span.last is None else min(span.last, state.last)
    if last < first:
        raise ReplayError(f"there is nothing to replay: the stream ends at sequence {state.last}, before {first}")
    return Span(first, last)


def replay_config(config: RunConfig, name: str, source: Source, span: Span, manner: Manner) -> RunConfig:
    """The run `name`, which trains on `span` of the source as `config` says.

    Raises:
        ConfigError: the configuration cannot train so.
        ReplayError: the replay is to be exact, and the checkpoint is of another number of ranks.
    """
    checkpoint = manner.checkpoint
    replay = ReplayConfig(
        source=source.config.run_name,
        source_url=source.bus.url,
        from_sequence=span.first,
        to_sequence=span.last,
        checkpoint=None if checkpoint is None else str(checkpoint.directory),
        to_step=manner.to_step,
        follow=manner.is_followed,
        pace="live" if manner.is_live else "full",
        short_batches=list(manner.short_batches),
        is_exact=manner.is_exact,
    )
    if manner.max_kl is not None:
        replay = replay.model_copy(update={"max_kl": manner.max_kl})
    planned = as_run(config, name).model_copy(
        update={"mode": "train", "continue_from_checkpoint": True, "cluster": _cluster(config), "replay": replay}
    )
    problems = violations(planned)
    if problems:
        raise ConfigError(planned.run_name, problems)
    if checkpoint is not None and manner.is_exact:
        _check_ranks(checkpoint.directory, planned)
    return planned


def _cluster(config: RunConfig) -> object:
    """As many ranks as the configuration's own trainer has: alone on its node, a trainer would take all GPUs."""
    cluster = config.cluster
    if cluster.gpu_per_node == 0 or config.mode == "train" or cluster.node_num != 1:
        return cluster
    return cluster.model_copy(update={"gpu_per_node": config.trainer_ranks})


def _check_ranks(checkpoint: Path, config: RunConfig) -> None:
    for path in sorted((checkpoint / "actor").glob("model_world_size_*_rank_0.pt")):
        match = _SHARD.match(path.name)
        if match and int(match.group(1)) != config.trainer_ranks:
            raise ReplayError(
                f"{checkpoint} was written by {match.group(1)} ranks, and this run has {config.trainer_ranks}, which "
                "add up in another order: use as many (cluster.trainer_ranks on the CPU)"
            )
