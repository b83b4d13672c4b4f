"""Which services run on which node, and which GPUs each may see. Pure.

Where there is no GPU, or one node, all run here. On several, each launcher starts the part of its node
(`cluster.node_rank`): explorers and the trainer where their GPUs are, the evaluator beside the first explorer, the
others on node 0. Who has which GPU is said in `services.config.allocation`.
"""

from collections.abc import Iterable, Iterator

from schemas.reports import ServiceName
from services.config.allocation import Allocation, Gpu, allocation
from services.config.tree import RunConfig

PARTED_MODES = ("both", "explore", "serve")
VISIBLE = "CUDA_VISIBLE_DEVICES"
Named = tuple[ServiceName, str]


def of_this_node(config: RunConfig, services: list[Named]) -> list[Named]:
    """The services that this node's launcher starts."""
    cluster = config.cluster
    if cluster.gpu_per_node == 0 or cluster.node_num < 2 or config.mode not in PARTED_MODES:
        return services
    found = allocation(config)
    nodes = {named: _node(found, named[0], number) for named, number in _numbered(services)}
    return [named for named in services if nodes[named] == cluster.node_rank]


def devices(config: RunConfig, services: list[Named]) -> dict[str, str]:
    """`CUDA_VISIBLE_DEVICES` for each of all services, by its name.

    A trainer of several nodes has its GPUs by Ray, which was started on each of them, and is told none here.
    """
    if config.cluster.gpu_per_node == 0:
        return {}
    found = allocation(config)
    visible: dict[str, str] = {}
    for (service, name), number in _numbered(services):
        if service in ("explorer", "evaluator"):
            visible[name] = _list(found.of_sampler(number))
        elif service == "trainer" and config.mode == "both" and len(found.ranks_of_nodes) == 1:
            visible[name] = _list(found.trainer)
        elif service in ("synchronizer", "monitor"):
            visible[name] = ""
    return visible


def _numbered(services: list[Named]) -> Iterator[tuple[Named, int]]:
    """The services, those that sample with their numbers among them."""
    samplers = 0
    for named in services:
        yield named, samplers
        samplers += named[0] in ("explorer", "evaluator")


def _node(found: Allocation, service: ServiceName, number: int) -> int:
    if service in ("explorer", "evaluator"):
        gpus: tuple[Gpu, ...] = found.of_sampler(number)
    else:
        gpus = found.trainer if service == "trainer" else ()
    return gpus[0][0] if gpus else 0


def _list(gpus: Iterable[Gpu]) -> str:
    return ",".join(str(number) for _, number in gpus)
