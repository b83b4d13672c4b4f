"""Every shipped configuration starts, once a user without a model hub has named a model and data of their own."""

import json
from pathlib import Path

import pytest

from services.cli.options import available
from services.config.availability import unavailable
from services.config.load import Loaded, load
from services.launcher.plans import plans
from services.launcher.preflight import problems

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = {str(path.relative_to(CONFIGS)): path for path in sorted(CONFIGS.rglob("*.yaml"))}
NOT_YET = {"examples/tinker.yaml": "not available yet: model.tinker.enable=true (set false instead)"}
"""What is refused, and all of it."""

COLUMNS = {
    "prompt": "1+1=",
    "question": "1+1=",
    "answer": "2",
    "response": "2",
    "chosen": "2",
    "rejected": "3",
    "text": "1+1=2",
    "seed": 1,
    "size": 4,
    "p": 0.8,
}
"""A row that every example can read."""

SERVICES = {
    "both": {"synchronizer", "trainer", "explorer", "monitor"},
    "train": {"trainer", "monitor"},
    "explore": {"synchronizer", "explorer"},
    "serve": {"synchronizer", "explorer"},
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What such a user has: a model, rows in two splits, no GPU, and no account anywhere."""
    for variable in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_BUS_URL", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()
    (model / "config.json").write_text("{}")
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text(json.dumps(COLUMNS) + "\n")
    return {"model": str(model), "data": str(data), "file": str(data / "train.jsonl"), "root": str(tmp_path / "runs")}


def _data(loaded: Loaded, mine: dict[str, str]) -> dict[str, str]:
    """The keys that name data: tasks in a directory, or in a file where a subset is named; rows in a file."""
    config = loaded.given
    source, given, found = config.buffer.explorer_input, config.buffer.trainer_input, {}
    places = {
        "buffer.explorer_input.taskset": [source.taskset] if source.taskset else [],
        "buffer.explorer_input.tasksets[{}]": source.tasksets,
        "buffer.explorer_input.eval_tasksets[{}]": source.eval_tasksets,
    }
    for key, tasksets in places.items():
        for number, taskset in enumerate(tasksets):
            if taskset.storage_type == "file":
                found[f"{key.format(number)}.path"] = mine["file" if taskset.subset_name else "data"]
    for number, stage in enumerate(loaded.stages or (loaded,)):
        rows = stage.given.buffer.trainer_input.experience_buffer
        if rows and rows.storage_type == "file":
            whole = f"stages[{number}]." if loaded.stages else ""
            found[f"{whole}buffer.trainer_input.experience_buffer.path"] = mine["file"]
    for name in given.auxiliary_buffers:
        found[f"buffer.trainer_input.auxiliary_buffers.{name}.path"] = mine["file"]
    return found


def _overrides(loaded: Loaded, mine: dict[str, str]) -> list[str]:
    """Paths of models and data; on the CPU, the numbers of GPUs."""
    config = loaded.given
    models = {f"explorer.auxiliary_models[{each}].model_path" for each in range(len(config.explorer.auxiliary_models))}
    models |= {"model.critic_model_path"} if config.model.critic_model_path else set()
    found = dict.fromkeys({"model.model_path", *models}, mine["model"])
    found |= _data(loaded, mine) | {"checkpoint_root_dir": mine["root"]}
    if config.cluster.gpu_per_node:
        found |= {"cluster.gpu_per_node": "0", "explorer.rollout_model.tensor_parallel_size": "1"}
    return [f"{key}={value}" for key, value in found.items()]


def _mine(name: str, mine: dict[str, str]) -> Loaded:
    return load(FILES[name], _overrides(load(FILES[name]), mine))


@pytest.mark.parametrize("name", sorted(set(FILES) - set(NOT_YET)))
def test_a_shipped_file_starts_with_a_model_and_data_of_ones_own(name: str, mine: dict[str, str]) -> None:
    found = _mine(name, mine)
    for stage in found.stages or (found,):
        config = available(stage)
        assert problems(config) == []
        assert {plan.service for plan in plans(config, Path("config.yaml"))} >= SERVICES[config.mode]


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_a_shipped_file_cannot_do_yet_is_this_and_no_more(name: str, mine: dict[str, str]) -> None:
    assert unavailable(_mine(name, mine).config) == [NOT_YET[name]]
