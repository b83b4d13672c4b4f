"""A tiny random model, made once a session, for tests on the real engine and the real trainer."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from services.prepare.tiny import prepare_tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One after the other, as each may start a Ray of its own; and before all others, as they take longest."""
    items.sort(key=lambda item: not _is_here(item))
    for item in filter(_is_here, items):
        item.add_marker(pytest.mark.xdist_group("ray"))


def _is_here(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    prepare_tiny(root)
    return root / "model"


@pytest.fixture
def noised_model(tiny_model: Path, tmp_path: Path) -> Path:
    """Other weights than the tiny model's, near them."""
    import torch
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "noised"
    shutil.copytree(tiny_model, directory)
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: (tensor.float() + 0.05 * torch.randn(tensor.shape, generator=chance)).to(tensor.dtype)
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture
def real_config(config: dict[str, Any], tiny_model: Path) -> dict[str, Any]:
    """A run of three steps on vLLM and veRL, in float32, so that log-probs can be compared exactly."""
    config["name"] = "real"
    config["model"] = {
        "model_path": str(tiny_model),
        "max_prompt_tokens": 16,
        "max_response_tokens": 8,
        "max_model_len": 32,
    }
    config["algorithm"]["optimizer"] = {"lr": 1e-3}
    config["cluster"] = {"gpu_per_node": 0, "trainer_ranks": 2}
    config["buffer"]["total_steps"] = 3
    config["explorer"]["eval_interval"] = 2
    config["explorer"]["rollout_model"] = {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": False,
    }
    config["synchronizer"] = {"sync_offset": 1}
    config["trainer"] = {
        "trainer_type": "verl",
        "param_dtype": "fp32",
        "save_interval": 2,
        "max_token_len_per_gpu": 4096,
        "use_remove_padding": False,
    }
    return config
