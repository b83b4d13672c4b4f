"""Weights are called identical only when every bit of every tensor is, and something was compared."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from services.replay.comparison import Finding, compared_directories, compared_files, joined

BASE = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def _pair(tmp_path: Path, name: str, left: object, right: object) -> tuple[Path, Path]:
    paths = []
    for side, value in (("left", left), ("right", right)):
        directory = tmp_path / side
        directory.mkdir(exist_ok=True)
        path = directory / name
        save_file(value, path) if name.endswith(".safetensors") else torch.save(value, path)
        paths.append(path)
    return paths[0], paths[1]


def _changed(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**BASE, name: value}


NAMES = ["model.safetensors", "model_world_size_2_rank_1.pt"]


@pytest.mark.parametrize("name", NAMES)
def test_equal_tensors_are_identical(tmp_path: Path, name: str) -> None:
    found = compared_files("x", *_pair(tmp_path, name, BASE, {k: v.clone() for k, v in BASE.items()}))
    assert found == Finding("x", tensors=2)
    assert found.is_identical
    assert str(found) == "x: bit-identical (2 tensors)"


@pytest.mark.parametrize("name", NAMES)
def test_the_worst_tensor_is_named_with_its_difference(tmp_path: Path, name: str) -> None:
    other = {"a": BASE["a"] + torch.tensor([0, 0, 1e-3]), "b": torch.tensor([1, 1, 1.5, 1]).to(torch.bfloat16)}
    found = compared_files("x", *_pair(tmp_path, name, BASE, other))
    assert (found.tensors, found.differing, found.worst, found.max_abs_difference) == (2, 2, "b", 0.5)
    assert not found.is_identical
    assert str(found) == "x: 2 of 2 tensors differ, most of all b (max abs difference 0.5)"


@pytest.mark.parametrize("name", NAMES)
def test_one_bit_is_a_difference(tmp_path: Path, name: str) -> None:
    other = _changed("a", torch.from_numpy(np.nextafter(BASE["a"].numpy(), np.float32(9))))
    found = compared_files("x", *_pair(tmp_path, name, BASE, other))
    assert (found.differing, found.worst) == (1, "a")
    assert 0 < found.max_abs_difference < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_minus_zero_is_not_zero_and_nan_is_itself(tmp_path: Path, name: str) -> None:
    zero, minus = torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])
    assert compared_files("x", *_pair(tmp_path, name, {"z": zero}, {"z": zero.clone()})).is_identical
    found = compared_files("x", *_pair(tmp_path, name, {"z": zero}, {"z": minus}))
    assert found.differing == 1


@pytest.mark.parametrize("name", NAMES)
def test_another_shape_type_or_name_is_never_identical(tmp_path: Path, name: str) -> None:
    for other in (_changed("a", BASE["a"].reshape(3, 2)), _changed("a", BASE["a"].double())):
        found = compared_files("x", *_pair(tmp_path, name, BASE, other))
        assert (found.differing, found.max_abs_difference) == (1, float("inf"))
    found = compared_files("x", *_pair(tmp_path, name, BASE, {"a": BASE["a"]}))
    assert not found.is_identical
    assert found.reason == "1 tensors are in one of them only: b"


def test_optimizer_and_random_states_are_compared_to_the_last_number(tmp_path: Path) -> None:
    def state(step: int, word: int) -> dict[str, object]:
        moments = {"exp_avg": torch.ones(3), "step": torch.tensor(2.0)}
        return {"state": {0: moments}, "lr": [1e-6], "steps": step, "rng": ("MT", np.array([1, word], np.uint64))}

    name = "optim_world_size_1_rank_0.pt"
    assert compared_files("x", *_pair(tmp_path, name, state(4, 7), state(4, 7))).is_identical
    assert compared_files("x", *_pair(tmp_path, name, state(4, 7), state(5, 7))).worst == "steps"
    assert compared_files("x", *_pair(tmp_path, name, state(4, 7), state(4, 8))).worst == "rng[1]"


def test_the_state_of_pythons_own_random_is_no_part_of_training(tmp_path: Path) -> None:
    def state(words: int, numpy_word: int) -> dict[str, object]:
        return {"lr": 1e-6, "rng": {"random": (3, (words, 2), None), "numpy": ("MT", np.array([numpy_word]))}}

    name = "extra_state_world_size_1_rank_0.pt"
    assert compared_files("x", *_pair(tmp_path, name, state(1, 5), state(2, 5))).is_identical
    assert compared_files("x", *_pair(tmp_path, name, state(1, 5), state(2, 6))).worst == "rng.numpy[1]"


def test_a_file_that_one_side_lacks_is_a_difference(tmp_path: Path) -> None:
    left, right = _pair(tmp_path, "model.safetensors", BASE, BASE)
    torch.save({}, left.parent / "extra_state_world_size_1_rank_0.pt")
    found = compared_directories("checkpoint 4", left.parent, right.parent)
    assert not found.is_identical
    assert "extra_state_world_size_1_rank_0.pt: not in both" in str(found)


def test_nothing_compared_is_not_identical(tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "tokenizer.json").write_text("{}")
    found = compared_directories("version 1", tmp_path / "left", tmp_path / "right")
    assert not found.is_identical
    assert "holds weights" in str(found)
    assert not compared_directories("version 1", tmp_path / "left", tmp_path / "absent").is_identical


def test_several_files_are_told_as_one_with_the_worst_of_all() -> None:
    found = joined(
        "checkpoint 4",
        [Finding("p", 3), Finding("q", 2, 1, "w", 0.25), Finding("r", 1, 1, "v", 0.125)],
    )
    assert (found.tensors, found.differing, found.worst, found.max_abs_difference) == (6, 2, "w of q", 0.25)
