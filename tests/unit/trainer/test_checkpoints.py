"""A checkpoint is there as a whole or not at all; weights are removed only when nobody needs them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.state import Resumed
from schemas.weights import WeightVersion
from services.inference.weights import WeightsUnusable, verified
from services.runtime.durable import committed
from services.trainer import checkpoints
from services.trainer.committing import CannotResume, sound_checkpoint
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
    (tmp_path / ".global_step_2.1.writing").mkdir()
    (tmp_path / "global_step_3").mkdir()
    assert [found.step for found in checkpoints.checkpoints(tmp_path)] == [1]
    checkpoints.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["global_step_1", "global_step_3"]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        checkpoints.commit(tmp_path, Ledger(step=step), _write)
    removed = checkpoints.prune(tmp_path, keep=2)
    assert [path.name for path in removed] == ["global_step_1"]
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


FIRST, SECOND = Resumed(incarnation=1, step=0), Resumed(incarnation=2, step=4)


def _of(incarnation: int, step: int, *lineage: Resumed) -> Ledger:
    return Ledger(step=step, incarnation=incarnation, lineage=lineage)


def test_what_a_superseded_trainer_commits_is_not_in_force(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)
    checkpoints.commit(tmp_path, _of(1, 8, FIRST), _write)
    by_the_bus = checkpoints.checkpoints(tmp_path, (FIRST, SECOND))
    assert [found.step for found in by_the_bus] == [4]
    checkpoints.commit(tmp_path, _of(2, 6, FIRST, SECOND), _write)
    assert [found.step for found in checkpoints.checkpoints(tmp_path)] == [4, 6]
    assert [found.step for found in checkpoints.fenced(tmp_path)] == [8]


def test_a_step_that_a_superseded_trainer_has_taken_is_committed_anew(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, _of(1, 8, FIRST), _write)
    checkpoints.commit(tmp_path, _of(2, 8, FIRST, SECOND), lambda aside: (aside / "part").write_text("second"))
    (found,) = checkpoints.checkpoints(tmp_path)
    assert (found.ledger().incarnation, (found.directory / "part").read_text()) == (2, "second")


def test_what_a_later_trainer_commits_anew_stays_until_somebody_prunes_it(tmp_path: Path) -> None:
    third = Resumed(incarnation=3, step=4)
    checkpoints.commit(tmp_path, _of(1, 8, FIRST), _write)
    checkpoints.commit(tmp_path, _of(2, 8, FIRST, SECOND), _write)
    checkpoints.commit(tmp_path, _of(3, 8, FIRST, SECOND, third), _write)
    checkpoints.sweep(tmp_path)
    checkpoints.prune(tmp_path, keep=1)
    aside = checkpoints.fenced(tmp_path)
    assert [found.directory.name for found in aside] == ["global_step_8.1", "global_step_8.2"]
    assert [(found.step, found.ledger().incarnation, found.damage()) for found in aside] == [(8, 1, []), (8, 2, [])]


def _export(directory: Path) -> None:
    (directory / "model.safetensors").write_text("weights")
    (directory / "config.json").write_text("of the export")


def test_weights_are_added_to_a_checkpoint_that_is_there_and_its_other_files_stay(tmp_path: Path) -> None:
    def write(directory: Path) -> None:
        (directory / "actor" / "huggingface").mkdir(parents=True)
        (directory / "actor" / "huggingface" / "config.json").write_text("{}")

    found = checkpoints.commit(tmp_path, _of(1, 4, FIRST), write)
    assert not found.has_weights
    with pytest.raises(OSError, match="killed"):
        checkpoints.commit(tmp_path, _of(1, 4, FIRST), write, _fails_after(_export))
    assert (found.has_weights, found.damage(is_thorough=True)) == (False, [])
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), write, _export)
    assert (found.has_weights, found.damage(is_thorough=True)) == (True, [])
    place = found.directory / "actor" / "huggingface"
    assert (place / "config.json").read_text() == "{}"
    assert sorted(found.manifest()) == ["actor/huggingface/config.json", "actor/huggingface/model.safetensors"]
    (place / "model.safetensors").write_text("wXights")
    assert found.damage(is_thorough=True, below="actor/huggingface") != []
    assert found.damage(is_thorough=True, below="critic") == []
    checkpoints.sweep(tmp_path)
    assert checkpoints.leftovers(tmp_path) == []


def _export_in_two_files(directory: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (directory / name).write_text(name)
    (directory / "model.safetensors.index.json").write_text("{}")


def test_weights_whose_addition_was_killed_half_way_are_added_by_the_next_commit(tmp_path: Path) -> None:
    found = checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)
    place = found.directory / checkpoints.HUGGING_FACE
    place.mkdir(parents=True)
    _export_in_two_files(place)
    (place / "model.safetensors.index.json").unlink()
    (place / "model-00002-of-00002.safetensors").unlink()
    assert not found.has_weights
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write, _export)
    assert (found.has_weights, found.damage(is_thorough=True)) == (True, [])
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write, lambda aside: pytest.fail("the weights are there already"))


def test_a_kill_between_two_files_leaves_no_weights_that_count(tmp_path: Path) -> None:
    found = checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)
    kill = f"""
import os, sys
from pathlib import Path
from schemas.state import Resumed
from services.trainer import checkpoints
from services.trainer.ledger import Ledger
replace = Path.replace
def killed_after(self, target):
    replace(self, target)
    if self.name.startswith("model-00001"):
        os.kill(os.getpid(), 9)
Path.replace = killed_after
def export(directory):
    for number in (1, 2):
        (directory / f"model-0000{{number}}-of-00002.safetensors").write_text("weights")
    (directory / "model.safetensors.index.json").write_text("{{}}")
ledger = Ledger(step=4, incarnation=1, lineage=(Resumed(incarnation=1, step=0),))
checkpoints.commit(Path({str(tmp_path)!r}), ledger, lambda aside: None, export)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", kill], env=environment, check=False).returncode == -9
    place = found.directory / checkpoints.HUGGING_FACE
    assert [path.name for path in place.iterdir()] == ["model-00001-of-00002.safetensors"]
    assert not found.has_weights
    checkpoints.sweep(tmp_path)
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write, _export_in_two_files)
    assert (found.has_weights, found.damage(is_thorough=True)) == (True, [])
    assert len(list(place.iterdir())) == 3


def _fails_after(write: checkpoints.Write) -> checkpoints.Write:
    def fail(directory: Path) -> None:
        write(directory)
        raise OSError("killed")

    return fail


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
import torch
from services.trainer import checkpoints
from services.trainer.ledger import Ledger

def write(directory):
    torch.save(torch.zeros(2**18), directory / "part.pt")

run_dir = Path(sys.argv[1])
for step in range(1, 99):
    try:
        checkpoints.commit(run_dir, Ledger(step=step), write)
    except checkpoints.CannotSave as error:
        (newest,) = [found for found in checkpoints.checkpoints(run_dir) if found.step == step - 1]
        print(step, newest.damage(is_thorough=True), checkpoints.leftovers(run_dir), error)
        break
"""


def test_a_disk_that_is_really_full_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    mounted = f"mount -t tmpfs -o size=4m none {tmp_path} && exec {sys.executable} -c '{ON_A_SMALL_DISK}' {tmp_path}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    unshared = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshared, "true"], check=False).returncode != 0:
        pytest.skip("no disk of its own can be made here")
    ended = subprocess.run([*unshared, mounted], env=environment, capture_output=True, text=True, check=False)
    told = ended.stdout.splitlines()[-1]
    assert told.startswith("4 [] [] global_step_4 cannot be written: no space is left below"), ended


def test_a_full_disk_is_told_and_leaves_every_checkpoint_as_it_was(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)

    def on_a_full_disk(directory: Path) -> None:
        (directory / "part").symlink_to("/dev/full")
        (directory / "part").write_text("state")

    with pytest.raises(checkpoints.CannotSave, match="global_step_8 cannot be written: no space is left"):
        checkpoints.commit(tmp_path, _of(1, 8, FIRST), on_a_full_disk)
    with pytest.raises(checkpoints.CannotSave, match="no space is left"):
        checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write, on_a_full_disk)
    (found,) = checkpoints.checkpoints(tmp_path)
    assert (found.step, found.has_weights, found.damage(is_thorough=True)) == (4, False, [])
    assert (tmp_path / checkpoints.LATEST_FILE).read_text() == "4\n"


def test_a_superseded_trainer_cannot_take_the_place_of_its_successors_checkpoint(tmp_path: Path) -> None:
    def frozen_while_it_writes() -> None:
        with committed(tmp_path / "global_step_8", owner="1", replaces=False) as aside:
            _write(aside)
            checkpoints.commit(tmp_path, _of(2, 8, FIRST, SECOND), _write)

    with pytest.raises(FileExistsError, match="written by another"):
        frozen_while_it_writes()
    assert checkpoints.checkpoints(tmp_path)[-1].ledger().incarnation == 2
    assert checkpoints.leftovers(tmp_path) == []


def test_a_step_committed_twice_renews_its_ledger_and_keeps_its_model(tmp_path: Path) -> None:
    checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)
    later = _of(2, 4, FIRST, SECOND)
    later.sequences.add(range(1, 9))
    checkpoints.commit(tmp_path, later, lambda aside: pytest.fail("the model is there already"))
    (found,) = checkpoints.checkpoints(tmp_path)
    assert found.ledger() == later
    assert found.damage(is_thorough=True) == []


def test_a_run_goes_on_from_the_newest_checkpoint_whose_every_byte_is_as_it_was(tmp_path: Path) -> None:
    first, second = (checkpoints.commit(tmp_path, _of(1, step, FIRST), _write) for step in (4, 8))
    assert checkpoints.newest_sound(tmp_path) == second
    (second.directory / "part").write_text("Xtate")
    assert checkpoints.newest_sound(tmp_path) == first
    (first.directory / "part").unlink()
    assert checkpoints.newest_sound(tmp_path) is None


def test_a_run_of_before_there_were_manifests_goes_on_and_no_other_begins_from_it(tmp_path: Path) -> None:
    found = checkpoints.commit(tmp_path, _of(1, 4, FIRST), _write)
    assert sound_checkpoint(str(found.directory)) == found.directory
    (found.directory / checkpoints.MANIFEST_FILE).unlink()
    assert checkpoints.newest_sound(tmp_path) == found
    with pytest.raises(CannotResume, match=r"has no manifest\.json, so nothing says that its files are whole"):
        sound_checkpoint(str(found.directory))
    (found.directory / checkpoints.LEDGER_FILE).unlink()  # as veRL itself leaves one
    assert sound_checkpoint(str(found.directory)) == found.directory


def test_damage_is_named(tmp_path: Path) -> None:
    found = checkpoints.commit(tmp_path, Ledger(step=1), _write)
    (found.directory / "part").write_text("Xtate")
    assert found.damage() == []
    assert found.damage(is_thorough=True) == ["part: its contents have changed since it was written"]
    (found.directory / "part").write_text("st")
    assert found.damage() == ["part has 2 bytes, not 5"]
    (found.directory / "part").unlink()
    assert found.damage() == ["part is not there"]
