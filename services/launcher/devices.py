"""Which GPUs each service of this machine may see. Pure.

Explorers take theirs first, one engine after the other; the evaluator shares those of the first explorer (each
engine then takes half of `gpu_memory_utilization`). Auxiliary models come next: every explorer and the evaluator have
an engine of each, so the k-th of these services takes the GPUs of engine `k mod engine_num` of the model, and those on
the same GPUs share the memory. The trainer has the rest (`cluster`, as in Trinity-RFT). Where there is no GPU nothing
is said.
"""

from collections.abc import Iterable

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
    samplers = 0
    for service, name in services:
        if service in ("explorer", "evaluator"):
            place = samplers if service == "explorer" else 0
            own = range(place * per_engine, (place + 1) * per_engine)
            visible[name] = _list([*own, *_auxiliary(config, samplers)])
            samplers += 1
        elif service == "trainer" and config.mode == "both":
            visible[name] = _list(range(config.explorer_gpus, config.cluster.gpu_per_node))
        elif service in ("synchronizer", "monitor"):
            visible[name] = ""
    return visible


def _auxiliary(config: RunConfig, sampler: int) -> list[int]:
    """The GPUs of the auxiliary engines of one explorer or evaluator, in the order of the models."""
    first = config.explorer.rollout_model.gpus
    chosen: list[int] = []
    for model in config.explorer.auxiliary_models:
        begin = first + (sampler % model.engine_num) * model.gpus_per_engine
        chosen.extend(range(begin, begin + model.gpus_per_engine))
        first += model.gpus
    return chosen


def _list(devices: Iterable[int]) -> str:
    return ",".join(str(device) for device in devices)
