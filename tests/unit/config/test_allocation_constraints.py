"""GPUs that cannot be shared out as the configuration says are refused with what to change."""

from collections.abc import Callable

import pytest

from services.config.load import Loaded

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

TWO_NODES = ("cluster.node_num=2", "cluster.gpu_per_node=8", "bus.url=nats://host:4222")
ENGINE = "explorer.rollout_model"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{ENGINE}.tensor_parallel_size=9"],
            "engine 1 of 1 of explorer.rollout_model, of 9 GPUs finds no place on one of 2 nodes of 8 GPUs "
            "(cluster.gpu_per_node): an engine lies on one node; use a smaller tensor_parallel_size",
        ),
        (
            [f"{ENGINE}.engine_num=3", f"{ENGINE}.tensor_parallel_size=5"],
            "engine 3 of 3 of explorer.rollout_model, of 5 GPUs finds no place on one of 2 nodes of 8 GPUs "
            "(cluster.gpu_per_node): an engine lies on one node; use a smaller tensor_parallel_size",
        ),
        (
            [f"{ENGINE}.tensor_parallel_size=8", "explorer.auxiliary_models=[{model_path: judge}]"],
            "explorer 0 has its rollout engine on node 0 and an auxiliary engine on node 1: an explorer runs on one "
            "node; serve the model by itself (external_model_config), or use fewer nodes",
        ),
        (
            ["trainer.ulysses_sequence_parallel_size=4"],
            "trainer.ulysses_sequence_parallel_size=4 does not divide the 15 ranks of the trainer: use a divisor of "
            "15, or other numbers of engines and nodes",
        ),
        (["cluster.node_rank=2"], "cluster.node_rank=2 is no node of 2 (cluster.node_num): use 0 to 1"),
    ],
)
def test_what_has_no_place_is_refused(refused: Refuse, overrides: list[str], message: str) -> None:
    (problem,) = refused(*TWO_NODES, *overrides)
    assert problem.startswith(message)


def test_several_nodes_meet_on_a_bus_that_is_there(refused: Refuse) -> None:
    (problem,) = refused(*TWO_NODES[:2])
    assert "start one with trinity bus, and set bus.url" in problem


def test_the_environment_tells_a_launcher_its_node(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_NODE_RANK", "1")
    assert loaded(*TWO_NODES).config.cluster.node_rank == 1
