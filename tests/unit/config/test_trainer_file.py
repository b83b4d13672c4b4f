"""A file of veRL's keys counts as if it stood in the configuration, and tells its own lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.errors import ConfigError
from services.config.load import Loaded, load

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

VERL = """\
actor_rollout_ref:
  actor:
    use_dynamic_bsz: false
    ppo_micro_batch_size_per_gpu: 4
critic:
  use_dynamic_bsz: ${actor_rollout_ref.actor.use_dynamic_bsz}
"""


@pytest.mark.parametrize("directory", ["beside", "working"])
def test_a_file_is_looked_for_beside_the_configuration_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: Load, directory: str
) -> None:
    (tmp_path / "beside").mkdir()
    loaded()
    (tmp_path / "beside" / "c.yaml").write_text((tmp_path / "c.yaml").read_text())
    (tmp_path / ("beside" if directory == "beside" else ".") / "train.yaml").write_text(VERL)
    found = load(tmp_path / "beside" / "c.yaml", ["trainer.trainer_config_path=train.yaml"])
    assert found.config.trainer.trainer_config["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] == 4
    assert found.config.trainer.use_dynamic_bsz is False
    key = "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    assert found.origins[key].endswith("train.yaml:4")


def test_a_problem_in_the_file_is_told_with_its_line(tmp_path: Path, refused: Refuse) -> None:
    (tmp_path / "train.yaml").write_text(VERL + "  optim: {lr: -1}\n")
    (problem,) = refused("trainer.trainer_config_path=train.yaml")
    assert problem.startswith("trainer.trainer_config.critic.optim.lr=-1 is refused: use a number above 0  (")
    assert problem.endswith("train.yaml:7)")


def test_a_file_that_is_not_there_is_told_with_the_places(refused: Refuse, tmp_path: Path) -> None:
    (problem,) = refused("trainer.trainer_config_path=other.yaml")
    assert f"there is no such file: looked for {tmp_path / 'other.yaml'}" in problem


def test_a_file_and_an_inline_section_exclude_each_other(tmp_path: Path, refused: Refuse) -> None:
    (tmp_path / "train.yaml").write_text(VERL)
    inline = "trainer.trainer_config.critic.cliprange_value=0.4"
    (problem,) = refused("trainer.trainer_config_path=train.yaml", inline)
    assert "trainer.trainer_config and trainer.trainer_config_path exclude each other: keep one of them" in problem


def test_a_stage_has_a_file_of_its_own(tmp_path: Path, loaded: Load) -> None:
    (tmp_path / "train.yaml").write_text(VERL)
    stages = "[{stage_name: one}, {stage_name: two, trainer: {trainer_config_path: train.yaml}}]"
    one, two = loaded(f"stages={stages}").stages
    assert (one.config.trainer.use_dynamic_bsz, two.config.trainer.use_dynamic_bsz) == (True, False)


def test_what_cannot_be_interpolated_is_told(tmp_path: Path, loaded: Load) -> None:
    (tmp_path / "train.yaml").write_text("critic: {cliprange_value: '${data.clip}'}\n")
    with pytest.raises(ConfigError, match="Interpolation key 'data"):
        loaded("trainer.trainer_config_path=train.yaml")
