"""What must hold so that every engine and every rank of the trainer has its GPUs."""

from collections.abc import Callable, Iterator

from services.config.allocation import allocation
from services.config.errors import Problem
from services.config.tree import RunConfig


def _every_engine_has_a_place(config: RunConfig) -> Iterator[Problem]:
    cluster = config.cluster
    if config.explorer_gpus > cluster.gpus:
        return  # told already: there are too few, wherever they are
    for engine in allocation(config).homeless:
        nodes = (
            f"{max(1, cluster.node_num)} nodes of {cluster.gpu_per_node} GPUs" if cluster.node_num > 1 else "the node"
        )
        message = f"{engine} finds no place on one of {nodes} (cluster.gpu_per_node): an engine lies on one node"
        yield Problem(engine.split(" of ")[2].split(",")[0], f"{message}; use a smaller tensor_parallel_size")


def _auxiliary_engines_are_beside_their_explorers(config: RunConfig) -> Iterator[Problem]:
    found = allocation(config)
    for number in range(len(found.rollout)):
        nodes = sorted({node for node, _ in found.of_sampler(number)})
        if len(nodes) > 1:
            message = (
                f"explorer {number} has its rollout engine on node {nodes[0]} and an auxiliary engine on node "
                f"{nodes[-1]}: an explorer runs on one node; serve the model by itself (external_model_config), or use "
                "fewer nodes"
            )
            yield Problem("explorer.auxiliary_models", message)
            return


def _sequences_are_shared_by_whole_groups_of_ranks(config: RunConfig) -> Iterator[Problem]:
    ranks, sharing = config.trainer_ranks, config.trainer.ulysses_sequence_parallel_size
    if config.mode in ("both", "train") and ranks > 0 and sharing > 0 and ranks % sharing:
        message = (
            f"trainer.ulysses_sequence_parallel_size={sharing} does not divide the {ranks} ranks of the trainer: use a "
            f"divisor of {ranks}, or other numbers of engines and nodes"
        )
        yield Problem("trainer.ulysses_sequence_parallel_size", message)


def _a_node_has_its_number(config: RunConfig) -> Iterator[Problem]:
    cluster = config.cluster
    nodes = max(1, cluster.node_num) if cluster.gpu_per_node else 1
    if not 0 <= cluster.node_rank < nodes:
        message = (
            f"cluster.node_rank={cluster.node_rank} is no node of {nodes} (cluster.node_num): use 0 to {nodes - 1}"
        )
        yield Problem("cluster.node_rank", message)
    if nodes > 1 and config.mode == "both" and config.bus.url is None:
        message = (
            f"cluster.node_num={nodes}: each node's launcher starts its own part, and all meet on one bus: start one "
            "with trinity bus, and set bus.url"
        )
        yield Problem("bus.url", message)


ALLOCATION_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _every_engine_has_a_place,
    _auxiliary_engines_are_beside_their_explorers,
    _sequences_are_shared_by_whole_groups_of_ranks,
    _a_node_has_its_number,
)
