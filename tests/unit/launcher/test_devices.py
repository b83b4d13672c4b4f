"""GPUs are shared out as the seeds' examples say."""

from pathlib import Path

import pytest

from services.config.load import load
from services.config.tree import RunConfig
from services.launcher.devices import VISIBLE
from services.launcher.plans import plans

EXAMPLES = Path(__file__).parents[3] / "configs" / "examples"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def _visible(name: str) -> dict[str, str]:
    found = plans(load(EXAMPLES / name).config, Path("config.yaml"))
    return {plan.name: plan.environment[VISIBLE] for plan in found if VISIBLE in plan.environment}


def test_the_trainer_has_what_the_explorers_leave() -> None:
    visible = _visible("grpo_example.yaml")
    assert visible["explorer"] == visible["evaluator"] == "0,1"
    assert visible["trainer"] == "2,3,4,5,6,7"


def test_each_engine_of_an_explorer_side_has_its_own() -> None:
    visible = _visible("async_explorer.yaml")
    assert [visible[name] for name in ("explorer", "explorer_1", "explorer_2", "explorer_3")] == ["0", "1", "2", "3"]


def test_without_gpus_nothing_is_said() -> None:
    config = load(EXAMPLES.parent / "quickstart.yaml").config
    assert all(plan.environment == {} for plan in plans(config, Path("config.yaml")))


def _run(tmp_path: Path, **model: object) -> list[str]:
    """`CUDA_VISIBLE_DEVICES` of two explorers, the evaluator and the trainer, beside one auxiliary model."""
    config = RunConfig.model_validate(
        {
            "cluster": {"gpu_per_node": 8},
            "buffer": {"explorer_input": {"taskset": {"path": "a"}, "eval_tasksets": [{"path": "b"}]}},
            "explorer": {
                "rollout_model": {"engine_num": 2},
                "auxiliary_models": [{"model_path": "judge", **model}],
            },
        }
    )
    found = {plan.name: plan.environment[VISIBLE] for plan in plans(config, tmp_path / "c.yaml")}
    return [found[name] for name in ("explorer", "explorer_1", "evaluator", "trainer")]


def test_an_auxiliary_model_of_one_engines_gpus_is_shared_by_all_who_sample(tmp_path: Path) -> None:
    assert _run(tmp_path) == ["0,2", "1,2", "0,2", "3,4,5,6,7"]


def test_auxiliary_engines_are_taken_in_turn(tmp_path: Path) -> None:
    shared = _run(tmp_path, engine_num=2, tensor_parallel_size=2)
    assert shared == ["0,2,3", "1,4,5", "0,2,3", "6,7"]


def test_an_external_model_takes_no_gpu(tmp_path: Path) -> None:
    assert _run(tmp_path, external_model_config={"enable": True, "model_name": "m"})[3] == "2,3,4,5,6,7"


@pytest.mark.parametrize(("engines", "shares"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_engines_on_the_same_gpus_share_the_memory(engines: int, shares: int) -> None:
    config = RunConfig.model_validate(
        {
            "cluster": {"gpu_per_node": 8},
            "buffer": {"explorer_input": {"eval_tasksets": [{"path": "b"}]}},
            "explorer": {
                "rollout_model": {"engine_num": 2},
                "auxiliary_models": [{"model_path": "judge", "engine_num": engines}],
            },
        }
    )
    assert config.auxiliary_shares(config.auxiliary_models[0]) == shares
