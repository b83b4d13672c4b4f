"""A model and its optimizer go on from the files of any number of ranks, by FSDP1 and FSDP2, as from their own."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from services.config.tree import RunConfig
from services.trainer.backends.port import CheckpointUnfit
from services.trainer.backends.restoring import restore_schedule, seed, seed_of
from services.trainer.backends.verl_backend import VerlBackend
from services.trainer.sharded import CheckpointUnreadable, Pieced, Shards, in_a_row, safely_loaded

RANKS = Path(__file__).parent / "ranks" / "restored.py"
MOVES = ("1 -> 2", "2 -> 1", "2 -> 2", "2 -> 3", "3 -> 2", "2x2 -> 2x2", "2x2 -> 3", "3 -> 2x2")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float | str]]:
    """What four processes have found, and their files."""
    root = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(RANKS), str(root)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return root, json.loads((root / "found.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["FSDP1", "FSDP2"])
def test_training_goes_on_alike_on_any_number_of_ranks(ranks, version: str) -> None:
    _, found = ranks
    for count in ("1", "2", "3", "2x2"):
        assert found[f"{version}: {count} straight on"] > 0.05
    for move in MOVES:
        assert found[f"{version}: {move}"] < 1e-7, move
    assert found[f"{version}: 2 -> 2"] == found[f"{version}: 2x2 -> 2x2"] == 0.0


def test_moments_that_some_ranks_lack_are_refused_and_not_dropped(ranks) -> None:
    assert "as FSDP 1 leaves them with fsdp_config.use_orig_params" in ranks[1]["original parameters"]


def test_the_optimizer_of_the_other_fsdp_is_refused(ranks) -> None:
    _, found = ranks
    for version in ("FSDP1", "FSDP2"):
        assert "trainer.trainer_strategy as they were" in found[f"{version}: refusal"]


def test_a_run_by_the_other_fsdp_is_refused_before_anything_starts(ranks, tmp_path: Path) -> None:
    root, _ = ranks
    (tmp_path / "actor").symlink_to(root / "1.2")
    config = RunConfig.model_validate({"model": {"model_path": "none"}, "algorithm": {"algorithm_type": "grpo"}})
    with pytest.raises(CheckpointUnfit, match=r"was made by FSDP 1, whose optimizer trainer.trainer_strategy=fsdp2"):
        VerlBackend(config).start(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_the_files_of_every_number_of_ranks_are_one_model(ranks, version: int) -> None:
    root, _ = ranks
    one, *others = (Shards(root / f"{version}.{count}") for count in (1, 2, 3))
    whole = {name: pieces.whole() for name, pieces in one.model().items()}
    assert whole["embedding.weight"].shape == (7, 6)
    for other in others:
        assert other.fsdp_version == version
        for name, pieces in other.model().items():
            assert len(pieces.pieces) == (1 if name == "scale" else other.ranks)
            assert torch.allclose(pieces.whole(), whole[name], atol=1e-7), name


def test_an_interrupted_save_and_a_damaged_file_are_told(ranks, tmp_path: Path) -> None:
    root, _ = ranks
    with pytest.raises(CheckpointUnreadable, match="it is no veRL checkpoint"):
        Shards(tmp_path)
    first, second = (f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1))
    whole = (root / "2.2" / first).read_bytes()
    (tmp_path / first).write_bytes(whole)
    with pytest.raises(CheckpointUnreadable, match="holds 1 of 2 ranks: its save was interrupted"):
        Shards(tmp_path)
    (tmp_path / second).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointUnreadable, match=f"{second} cannot be read"):
        Shards(tmp_path).model()
    (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(whole)
    with pytest.raises(CheckpointUnreadable, match="several numbers of ranks"):
        Shards(tmp_path)


class _Code:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.witness),)


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"lr_scheduler": _Code(tmp_path / "ran")}, tmp_path / "extra.pt")
    with pytest.raises(CheckpointUnreadable, match=r"extra\.pt cannot be read"):
        safely_loaded(tmp_path / "extra.pt")
    assert not (tmp_path / "ran").exists()


def test_a_box_is_copied_from_the_pieces_that_it_lies_in() -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    cut = Pieced((6, 4), 0, in_a_row([whole[:1], whole[1:4], whole[4:]]).pieces)
    box = torch.full((4, 2), -1.0)
    cut.copy_to(box, (1, 2))
    assert torch.equal(box, whole[1:5, 2:4])
    beyond = torch.full((3,), -1.0)
    in_a_row([torch.arange(2.0), torch.arange(2.0, 4.0)]).copy_to(beyond, (2,))
    assert beyond.tolist() == [2.0, 3.0, -1.0]


def _scheduled(lr: float, last: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    return optimizer, LambdaLR(optimizer, lambda step: max(0.0, 1 - step / last))


def test_a_schedule_goes_on_where_it_was_by_the_rates_of_the_configuration() -> None:
    optimizer, schedule = _scheduled(0.1, 10)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    same, other = _scheduled(0.1, 10), _scheduled(0.2, 8)
    for _, again in (same, other):
        restore_schedule(again, schedule.state_dict())
    assert same[0].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == pytest.approx(0.06)
    assert other[0].param_groups[0]["lr"] == other[1].get_last_lr()[0] == pytest.approx(0.1)
    for _, each in ((optimizer, schedule), same):
        each.optimizer.step()
        each.step()
    assert same[1].get_last_lr() == schedule.get_last_lr() == pytest.approx([0.05])


def _drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(1))


def test_random_states_are_read_as_plain_values(tmp_path: Path) -> None:
    seed(7)
    states = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    torch.save({"lr_scheduler": {"last_epoch": 3}, "rng": states}, tmp_path / "extra.pt")
    drawn = _drawn()
    found = safely_loaded(tmp_path / "extra.pt")["rng"]
    torch.set_rng_state(found["cpu"])
    np.random.set_state(found["numpy"])
    random.setstate(found["random"])
    assert _drawn() == drawn


def test_ranks_that_are_seeded_anew_draw_apart_and_alike_each_time() -> None:
    drawn = {}
    for rank, steps in ((0, 0), (1, 0), (0, 5), (1, 5)):
        seed(seed_of(42, rank, steps))
        drawn[rank, steps] = _drawn()
    seed(seed_of(42, 1, 5))
    assert _drawn() == drawn[1, 5]
    assert len(set(drawn.values())) == 4
