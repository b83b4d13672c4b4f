"""Which GPUs each service of this machine may see. Pure.

Explorers take theirs first, one engine after the other; the evaluator shares those of the first explorer (each
engine then takes half of `gpu_memory_utilization`); auxiliary
models come next; the trainer has the rest (`cluster`, as in Trinity-RFT). Where there is no GPU nothing is said.
"""

from schemas.reports import ServiceName
from services.config.tree import RunConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices(config: RunConfig, services: list[tuple[ServiceName, str]]) -> dict[str, str]:
    """`CUDA_VISIBLE_DEVICES` for each service, by its name."""
    if config.cluster.gpu_per_node == 0:
        return {}
    model = config.explorer.rollout_model
    per_engine = model.gpus // model.engine_num
    visible: dict[str, str] = {}
    explorers = 0
    for service, name in services:
        if service == "explorer":
            visible[name] = _list(explorers * per_engine, per_engine)
            explorers += 1
        elif service == "evaluator":
            visible[name] = _list(0, per_engine)
        elif service == "trainer" and config.mode == "both":
            visible[name] = _list(config.explorer_gpus, config.cluster.gpu_per_node - config.explorer_gpus)
        elif service in ("synchronizer", "monitor"):
            visible[name] = ""
    return visible


def _list(first: int, number: int) -> str:
    return ",".join(str(device) for device in range(first, first + number))
