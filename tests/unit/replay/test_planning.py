"""The configuration of a replay: an ordinary trainer's, with another run as its source."""

from types import SimpleNamespace

import pytest

from bus.port import StreamState
from services.config.errors import ConfigError
from services.config.load import load
from services.config.tree import RunConfig
from services.replay.errors import ReplayError
from services.replay.opening import Source
from services.replay.planning import Manner, available_span, free_name, replay_config
from services.replay.span import Span


@pytest.fixture
def past(config, tmp_path) -> RunConfig:
    import yaml

    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return load(path).config


@pytest.fixture
def source(past) -> Source:
    return Source(past, SimpleNamespace(url="nats://127.0.0.1:1"), is_served_here=True)


def _state(first: int, last: int) -> StreamState:
    return StreamState(last - first + 1, 0, first, last, None)


def test_a_replay_is_a_trainer_of_another_name(past, source) -> None:
    planned = replay_config(past, "again", source, Span(3, 9), Manner(max_kl=0.5, is_live=True))
    assert (planned.mode, planned.run_name) == ("train", "tests/again")
    assert planned.run_dir != past.run_dir
    replay = planned.replay
    assert replay is not None
    assert (replay.source, replay.source_url) == ("tests/fake", "nats://127.0.0.1:1")
    assert (replay.from_sequence, replay.to_sequence, replay.checkpoint) == (3, 9, None)
    assert (replay.pace, replay.follow, replay.max_kl) == ("live", False, 0.5)
    same = {"algorithm", "buffer", "model", "trainer", "synchronizer"}
    assert planned.model_dump(include=same) == past.model_dump(include=same)


def test_a_replay_under_its_sources_name_is_refused(past, source) -> None:
    with pytest.raises(ConfigError, match="is the run itself"):
        replay_config(past, past.name, source, Span(1, 9), Manner())


def test_a_checkpoint_of_other_ranks_is_refused_where_the_replay_is_to_be_exact(past, source, checkpoint_of) -> None:
    checkpoint = checkpoint_of(4, 17)
    (checkpoint.directory / "actor").mkdir()
    (checkpoint.directory / "actor" / "model_world_size_2_rank_0.pt").touch()
    with pytest.raises(ReplayError, match="was written by 2 ranks, and this run has 1"):
        replay_config(past, "again", source, Span(17, 20), Manner(checkpoint, is_exact=True))
    planned = replay_config(past, "again", source, Span(17, 20), Manner(checkpoint))
    assert planned.replay is not None
    assert planned.replay.checkpoint == str(checkpoint.directory)


def test_names_are_numbered_where_they_are_taken(past) -> None:
    assert free_name(past, "fake-replay") == "fake-replay"
    (past.run_dir.parent / "fake-replay").mkdir(parents=True)
    (past.run_dir.parent / "fake-replay-2").mkdir()
    assert free_name(past, "fake-replay") == "fake-replay-3"


def test_a_span_ends_where_the_stream_ends() -> None:
    assert available_span(Span(3, None), _state(1, 9), True, False) == Span(3, 9)
    assert available_span(Span(3, 20), _state(1, 9), True, False) == Span(3, 9)
    assert available_span(Span(3, 5), _state(1, 9), True, False) == Span(3, 5)
    assert available_span(Span(3, None), _state(1, 9), True, True) == Span(3, None)


def test_what_was_freed_is_told_and_left_out_where_nobody_asked_for_it() -> None:
    assert available_span(Span(1, None), _state(4, 9), False, False) == Span(4, 9)
    with pytest.raises(ReplayError, match="sequences 1 to 3 of the experience stream have been freed: begin at 4"):
        available_span(Span(1, None), _state(4, 9), True, False)


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(ReplayError, match="the stream ends at sequence 9, before 12"):
        available_span(Span(12, None), _state(1, 9), True, False)
    with pytest.raises(ReplayError, match="nothing to replay"):
        available_span(Span(1, None), _state(0, 0), False, False)
