"""GPUs are shared out as the seeds' examples say."""

from pathlib import Path
from typing import Any

import pytest

from services.config.allocation import allocation, auxiliary_memory_share, memory_share
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
                "rollout_model": {"engine_num": 2, "gpu_memory_utilization": 0.9},
                "auxiliary_models": [{"model_path": "judge", "engine_num": engines, "gpu_memory_utilization": 0.6}],
            },
        }
    )
    assert auxiliary_memory_share(config, config.auxiliary_models[0]) == 0.6 / shares
    assert memory_share(config) == 0.45


def _cluster(engines: int, size: int, **more: Any) -> RunConfig:
    """Two nodes of eight GPUs, with so many explorers on engines of `size` GPUs."""
    cluster = {"node_num": 2, "gpu_per_node": 8, **more.pop("cluster", {})}
    model = {"engine_num": engines, "tensor_parallel_size": size}
    tree = {"cluster": cluster, "explorer": {"rollout_model": model}, "bus": {"url": "nats://h:4222"}, **more}
    return RunConfig.model_validate(tree)


def _by_node(**more: Any) -> list[dict[str, str]]:
    """What each node's launcher starts, and what it lets them see."""
    found = [plans(_cluster(**more, cluster={"node_rank": node}), Path("c.yaml")) for node in (0, 1)]
    return [{plan.name: plan.environment.get(VISIBLE, "by Ray") for plan in node} for node in found]


def test_each_nodes_launcher_starts_the_part_of_its_node() -> None:
    first, second = _by_node(engines=3, size=4)
    assert first == {"synchronizer": "", "explorer": "0,1,2,3", "explorer_1": "4,5,6,7", "monitor": ""}
    assert second == {"trainer": "4,5,6,7", "explorer_2": "0,1,2,3"}


def test_a_trainer_of_several_nodes_has_its_gpus_by_ray() -> None:
    first, second = _by_node(engines=1, size=2)
    assert first == {"synchronizer": "", "trainer": "by Ray", "explorer": "0,1", "monitor": ""}
    assert second == {}
    assert allocation(_cluster(1, 2)).ranks_of_nodes == {0: 6, 1: 8}


def test_an_engine_lies_on_one_node_and_the_trainer_has_what_is_left() -> None:
    found = allocation(_cluster(2, 5))
    assert found.rollout == (tuple((0, gpu) for gpu in range(5)), tuple((1, gpu) for gpu in range(5)))
    assert found.trainer == ((0, 5), (0, 6), (0, 7), (1, 5), (1, 6), (1, 7))


def test_an_engine_larger_than_a_node_finds_no_place() -> None:
    assert allocation(_cluster(1, 9)).homeless == ("engine 1 of 1 of explorer.rollout_model, of 9 GPUs",)


def test_a_trainer_alone_has_all_gpus_of_all_nodes() -> None:
    found = allocation(_cluster(1, 2, mode="train"))
    assert (found.rollout, found.ranks_of_nodes) == ((), {0: 8, 1: 8})
