"""What an engine is told of an adapter, and which weights it takes."""

import json
import struct
from pathlib import Path

import pytest

from services.inference.layers import adapter_facts, linear_layers
from services.inference.vllm_lora import LoraSettings, assert_kind, lora_arguments
from services.inference.weights import WeightsUnusable, holds_adapter


def _adapter(directory: Path) -> str:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"r": 4}), encoding="utf-8")
    (directory / "adapter_model.safetensors").touch()
    return str(directory)


def test_an_engine_without_an_adapter_is_started_as_ever() -> None:
    assert lora_arguments(None) == {}


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_an_engine_has_room_for_one_adapter_of_the_rank(rank: int, room: int) -> None:
    told = lora_arguments(LoraSettings(rank))
    assert (told["enable_lora"], told["max_loras"], told["max_lora_rank"]) == (True, 1, room)


def test_an_engine_takes_the_kind_of_weights_that_it_was_started_for(tmp_path: Path) -> None:
    adapter, base, other = _adapter(tmp_path / "adapter"), str(tmp_path / "base"), str(tmp_path / "other")
    assert holds_adapter(Path(adapter))
    assert_kind(adapter, base, LoraSettings(4))
    assert_kind(base, base, LoraSettings(4))
    assert_kind(other, base, None)
    with pytest.raises(WeightsUnusable, match="holds an adapter: set"):
        assert_kind(adapter, base, None)
    with pytest.raises(WeightsUnusable, match="holds no adapter, which"):
        assert_kind(other, base, LoraSettings(4))


def test_matrices_are_told_from_the_head_of_the_files_alone(tmp_path: Path) -> None:
    shapes = {"up.weight": [4, 2], "up.bias": [4], "norm.weight": [2], "head.weight": [9, 2]}
    head = json.dumps({name: {"shape": shape} for name, shape in shapes.items()} | {"__metadata__": {}})
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head.encode())
    assert linear_layers(str(tmp_path)) == {"up", "head"}
    assert linear_layers("some-name/on-a-hub") == linear_layers("") == frozenset()


def test_an_adapter_on_disk_is_both_its_files(tmp_path: Path) -> None:
    path = _adapter(tmp_path / "adapter")
    assert adapter_facts(path) == {"r": 4}
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is not there"):
        adapter_facts(path)
