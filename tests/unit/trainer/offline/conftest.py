"""A tokenizer of bytes with a chat template, and small data files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.config.tree import RunConfig
from services.prepare.tiny import prepare_tiny


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    prepare_tiny(root)
    return root / "model"


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write rows as JSON lines; gives the path."""

    def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def offline(written: Callable[..., str]) -> Callable[..., RunConfig]:
    """A run of the fake backend on these rows."""

    def make(rows: list[dict[str, Any]], algorithm: str = "sft", **changes: Any) -> RunConfig:
        buffer = {"storage_type": "file", "path": written(rows), **changes.pop("buffer", {})}
        tree = {
            "mode": "train",
            "project": "tests",
            "name": "offline",
            "algorithm": {"algorithm_type": algorithm},
            "model": {"model_path": "none", "max_model_len": changes.pop("max_model_len", 64)},
            "buffer": {"train_batch_size": 4, "trainer_input": {"experience_buffer": buffer}, **changes},
            "trainer": {"trainer_type": "fake"},
        }
        return RunConfig.model_validate(tree)

    return make
