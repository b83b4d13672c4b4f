"""A checkpoint is there as a whole or not at all; weights are removed only when nobody needs them."""

from pathlib import Path

import pytest

from schemas.weights import WeightVersion
from services.inference.weights import WeightsUnusable, verified
from services.runtime.durable import committed
from services.trainer import checkpoints
from services.trainer.ledger import Ledger
from services.trainer.weights import WeightsDirectory


def _write(directory: Path) -> None:
    (directory / "part").write_text("state")


def test_a_write_that_fails_leaves_the_previous_checkpoint_in_force(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, Ledger(step=1), _write)

    def fail(directory: Path) -> None:
        _write(directory)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        checkpoints.commit(tmp_path, Ledger(step=2), fail)
    assert [found.step for found in checkpoints.checkpoints(tmp_path)] == [1]
    assert (tmp_path / checkpoints.LATEST_FILE).read_text() == "1\n"


def test_what_a_killed_writer_left_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, Ledger(step=1), _write)
    (tmp_path / ".global_step_2.writing").mkdir()
    (tmp_path / "global_step_3").mkdir()
    assert [found.step for found in checkpoints.checkpoints(tmp_path)] == [1]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        checkpoints.commit(tmp_path, Ledger(step=step), _write)
    checkpoints.prune(tmp_path, keep=2)
    assert [found.step for found in checkpoints.checkpoints(tmp_path)] == [2, 10]


def test_a_committed_directory_replaces_the_one_that_stood_there(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with committed(tmp_path / "weights") as aside:
            (aside / "file").write_text(text)
    assert (tmp_path / "weights" / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_announced_weights_are_refused_when_a_byte_differs(tmp_path: Path) -> None:
    directory = WeightsDirectory("tests/run", tmp_path, keep=-1)
    announced = directory.write(WeightVersion(incarnation=1, version=3), _write, "float32", 0.0)
    assert verified(announced) == tmp_path / "weights" / "version_3"
    (tmp_path / "weights" / "version_3" / "part").write_text("Xtate")
    with pytest.raises(WeightsUnusable, match="digest"):
        verified(announced)
    (tmp_path / "weights" / "version_3" / "part").unlink()
    with pytest.raises(WeightsUnusable, match="is not there"):
        verified(announced)


def test_pruning_weights_spares_the_newest_and_the_needed(tmp_path: Path) -> None:
    directory = WeightsDirectory("tests/run", tmp_path, keep=2)
    for version in range(6):
        directory.write(WeightVersion(incarnation=1, version=version), _write, "float32", 0.0)
    directory.prune(WeightVersion(incarnation=1, version=5), needed=[1])
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["version_1", "version_4", "version_5"]
