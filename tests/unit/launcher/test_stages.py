"""Stages begin from the weights before them, and anew under another name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.config.errors import ConfigError
from services.config.load import Loaded, load
from services.inference.config import LoRAConfig
from services.launcher.stages import current, from_model, prepared_stages

STAGED = """\
project: p
name: n
checkpoint_root_dir: {root}
continue_from_checkpoint: {goes_on}
model:
  model_path: some/model
buffer:
  batch_size: 4
  total_steps: 4
  explorer_input:
    taskset: {{name: sums, path: sums.jsonl}}
stages:
  - stage_name: first
  - stage_name: second
    algorithm: {{algorithm_type: ppo}}
"""


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., tuple[Loaded, ...]]:
    def make(goes_on: str = "true") -> tuple[Loaded, ...]:
        file = tmp_path / "c.yaml"
        file.write_text(STAGED.format(root=tmp_path, goes_on=goes_on), encoding="utf-8")
        return load(file).stages

    return make


def test_a_stage_and_its_engines_begin_from_the_weights_of_the_one_before(staged) -> None:
    (_, second) = staged()
    config = from_model(second, Path("/runs/first/weights/version_4"))
    assert config.model.model_path == "/runs/first/weights/version_4"
    assert config.explorer.rollout_model.model_path == "/runs/first/weights/version_4"
    assert config.model_copy(update={"model": second.config.model, "explorer": second.config.explorer}) == second.config
    assert from_model(second, None) == second.config


def test_a_stage_after_one_that_trained_an_adapter_goes_on_with_it(staged, tmp_path: Path) -> None:
    (_, second) = staged()
    weights = tmp_path / "weights" / "version_4"
    weights.mkdir(parents=True)
    (weights / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16}), encoding="utf-8")
    (weights / "adapter_model.safetensors").touch()
    with pytest.raises(ConfigError, match="the stage before has trained an adapter"):
        from_model(second, weights)

    def adapted(rank: int) -> Loaded:
        section = second.given.model.model_copy(update={"lora_configs": [LoRAConfig(lora_rank=rank, lora_alpha=16)]})
        return replace(second, given=second.given.model_copy(update={"model": section}))

    config = from_model(adapted(8), weights)
    assert config.model.model_path == "some/model"
    assert config.model.lora is not None
    assert config.model.lora.path == str(weights)
    with pytest.raises(ConfigError, match="set lora_rank=8"):
        from_model(adapted(4), weights)


async def test_stages_that_have_left_nothing_begin_with_the_first(staged) -> None:
    place = await current(staged())
    assert (place.number, place.is_over, place.config.model.model_path) == (1, False, "some/model")


def test_stages_that_have_begun_go_on_or_begin_anew_together_under_another_name(staged, tmp_path: Path) -> None:
    (tmp_path / "p" / "n" / "second" / "global_step_2").mkdir(parents=True)
    assert prepared_stages(staged()) == list(staged())
    first, second = prepared_stages(staged(goes_on="false"))
    directory = first.config.run_dir.parent
    assert directory.parent == tmp_path / "p"
    assert directory.name.startswith("n_")
    assert (first.config.name, second.config.name) == (f"{directory.name}-first", f"{directory.name}-second")
    assert second.config.run_dir == directory / "second"
    assert from_model(second, Path("/w")).run_dir == directory / "second"


def test_stages_that_have_not_begun_keep_their_name(staged) -> None:
    assert prepared_stages(staged(goes_on="false")) == list(staged(goes_on="false"))
