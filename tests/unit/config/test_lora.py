"""What is checked of an adapter before a run starts: its numbers, its layers, and the adapter that it begins from."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.availability import unavailable
from services.config.checks.general import violations
from services.config.load import Loaded

Load = Callable[..., Loaded]
KEY = "model.lora_configs"
LAYERS = ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head")


def _tensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file with the head alone."""
    head = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    )
    path.write_bytes(struct.pack("<Q", len(head)) + head.encode())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    shapes = {f"{name}.weight": [4, 4] for name in LAYERS} | {"model.norm.weight": [4]}
    _tensors(directory / "model.safetensors", shapes)
    return directory


def _adapter(directory: Path, **facts: object) -> Path:
    directory.mkdir()
    _tensors(directory / "adapter_model.safetensors", {})
    (directory / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16} | facts), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("lora", "key", "words"),
    [
        ("[{name: a}, {name: b}]", KEY, "has 2 entries, and one adapter is trained: keep one"),
        ("[{lora_rank: 0}]", f"{KEY}[0].lora_rank", "=0: use 1 to 512"),
        ("[{lora_rank: 1024}]", f"{KEY}[0].lora_rank", "=1024: use 1 to 512"),
        ("[{lora_alpha: 0}]", f"{KEY}[0].lora_alpha", "=0: use 1 or more"),
        ("[{lora_dtype: int8}]", f"{KEY}[0].lora_dtype", "=int8 is not known: use auto, float16, bfloat16"),
        ("[{rank: 8}]", f"{KEY}[0].rank", "did you mean"),
        ("[{base_model_name: other}]", f"{KEY}[0].base_model_name", "=other is not model.model_path="),
        ("[{target_modules: []}]", f"{KEY}[0].target_modules", "is empty: name layers, or leave it out"),
        ("[{target_modules: [q_prj]}]", f"{KEY}[0].target_modules", "no layer q_prj; did you mean q_proj?"),
        ("[{target_modules: [norm]}]", f"{KEY}[0].target_modules", "no layer norm; it has q_proj, up_proj"),
        ("[{target_modules: [lm_head]}]", f"{KEY}[0].target_modules", "lm_head is no layer of a block"),
        ("[{target_modules: [all-linear]}]", f"{KEY}[0].target_modules", "all-linear stands alone, not in a list"),
        ("[{target_modules: all_linear}]", f"{KEY}[0].target_modules", "no layer's whole name: use all-linear"),
        ("[{target_modules: q_proj}]", f"{KEY}[0].target_modules", "no layer's whole name: use [q_proj]"),
        ("[{target_modules: '*_proj'}]", f"{KEY}[0].target_modules", "is no regular expression"),
        ("[{exclude_modules: [k_proj]}]", f"{KEY}[0].exclude_modules", "no layer k_proj; did you mean q_proj?"),
        ("[{path: /nowhere}]", f"{KEY}[0].path", "/nowhere/adapter_config.json is not there"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_refused(
    refused: Callable[..., list[str]], model: Path, lora: str, key: str, words: str
) -> None:
    (said,) = refused(f"model.model_path={model}", f"{KEY}={lora}")
    assert key in said
    assert words in said


@pytest.mark.parametrize(
    "lora",
    [
        "{}",
        "{name: a, lora_rank: 1, lora_alpha: 3, base_model_name: model}",
        "{target_modules: [q_proj, mlp.up_proj], exclude_modules: [lm_head]}",
        "{target_modules: '.*self_attn.*'}",
    ],
)
def test_an_adapter_that_fits_the_model_is_available(loaded: Load, model: Path, lora: str) -> None:
    config = loaded(f"model.model_path={model}", f"{KEY}=[{lora}]", "explorer.rollout_model.enable_lora=true").config
    assert violations(config) == []
    assert unavailable(config) == []


def test_a_run_begins_from_an_adapter_of_the_same_rank_and_alpha(
    loaded: Load, refused: Callable[..., list[str]], model: Path, tmp_path: Path
) -> None:
    path, dora = _adapter(tmp_path / "adapter"), _adapter(tmp_path / "dora", use_dora=True)
    base = f"model.model_path={model}"
    assert violations(loaded(base, f"{KEY}=[{{path: {path}, lora_rank: 8, lora_alpha: 16}}]").config) == []
    rank, alpha = refused(base, f"{KEY}=[{{path: {path}}}]")
    assert "has 8: set lora_rank=8" in rank
    assert "has 16: set lora_alpha=16" in alpha
    (said,) = refused(base, f"{KEY}=[{{path: {dora}, lora_rank: 8, lora_alpha: 16}}]")
    assert "has use_dora, which vLLM does not know" in said


def test_an_engine_serves_an_adapter_only_where_one_is_trained(refused: Callable[..., list[str]], model: Path) -> None:
    (said,) = refused(f"model.model_path={model}", "explorer.rollout_model.enable_lora=true")
    assert "explorer.rollout_model.enable_lora=true without an adapter" in said
    (said,) = refused(f"model.model_path={model}", "explorer.rollout_model.model_path=b", f"{KEY}=[{{}}]")
    assert "an adapter fits the model that it was trained on" in said
