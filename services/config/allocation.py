"""Which GPU belongs to whom, on every node. Pure.

The rollout engines come first, one after the other, then the engines of the auxiliary models; the trainer has the rest,
one rank a GPU (as in Trinity-RFT). An engine lies on one node: where what is left of a node is too small for it, it
begins the next, and the trainer has what is left.

Each explorer has a rollout engine, and an engine of every auxiliary model: the k-th service that samples takes engine
`k mod engine_num` of a model. The evaluator comes after the explorers and shares the GPUs of the first of them; engines
of several services on the same GPUs share the memory.
"""

from dataclasses import dataclass, field

from services.config.tree import RunConfig
from services.inference.config import InferenceModelConfig

Gpu = tuple[int, int]
"""A node and the number of a GPU on it, both from 0."""


@dataclass(frozen=True)
class Allocation:
    """The GPUs of each engine and of the trainer. `homeless` are the engines that found no place, in words."""

    rollout: tuple[tuple[Gpu, ...], ...] = ()
    auxiliary: tuple[tuple[tuple[Gpu, ...], ...], ...] = ()
    trainer: tuple[Gpu, ...] = ()
    homeless: tuple[str, ...] = field(default=())

    def of_sampler(self, number: int) -> tuple[Gpu, ...]:
        """The GPUs of explorer `number`, or of the evaluator where that is the number of explorers: those of its
        rollout engine, and behind them those of its auxiliary engines, model by model."""
        own = self.rollout[number] if number < len(self.rollout) else self.rollout[0] if self.rollout else ()
        return (*own, *(gpu for engines in self.auxiliary if engines for gpu in engines[number % len(engines)]))

    @property
    def ranks_of_nodes(self) -> dict[int, int]:
        """How many ranks of the trainer each node has."""
        return {node: sum(1 for gpu in self.trainer if gpu[0] == node) for node, _ in self.trainer}


def allocation(config: RunConfig) -> Allocation:
    """Nothing where there is no GPU; where the run is parted over several launchers, what this mode needs."""
    cluster = config.cluster
    gpus = [(node, gpu) for node in range(max(1, cluster.node_num)) for gpu in range(cluster.gpu_per_node)]
    if config.mode == "train" or not gpus:
        return Allocation(trainer=tuple(gpus))
    free, homeless = list(gpus), list[str]()
    rollout = _placed(config.explorer.rollout_model, "explorer.rollout_model", free, homeless)
    auxiliary = tuple(
        _placed(model, f"explorer.auxiliary_models[{number}]", free, homeless)
        for number, model in enumerate(config.explorer.auxiliary_models)
    )
    return Allocation(rollout, auxiliary, tuple(free) if config.mode == "both" else (), tuple(homeless))


def memory_share(config: RunConfig) -> float:
    """What of a GPU's memory a rollout engine may take: half of what is allowed where the evaluator may share it."""
    share = config.rollout_model.gpu_memory_utilization
    is_shared = config.cluster.gpu_per_node > 0 and bool(config.eval_tasksets) and config.mode in ("both", "explore")
    return share / 2 if is_shared else share


def auxiliary_memory_share(config: RunConfig, model: InferenceModelConfig) -> float:
    """What of a GPU's memory an engine of `model` may take: what is allowed, by those who have one on the same GPUs."""
    if config.cluster.gpu_per_node == 0:
        return model.gpu_memory_utilization
    sharing = config.explorer.rollout_model.engine_num + bool(config.eval_tasksets)
    return model.gpu_memory_utilization / -(-sharing // max(1, model.engine_num))


def _placed(model: InferenceModelConfig, key: str, free: list[Gpu], homeless: list[str]) -> tuple[tuple[Gpu, ...], ...]:
    """The GPUs of each engine, taken from `free`; an engine behind an address takes none."""
    engines: list[tuple[Gpu, ...]] = []
    for number in range(model.engine_num):
        taken = _first_fit(free, model.gpus_per_engine)
        if taken is None:
            homeless.append(f"engine {number + 1} of {model.engine_num} of {key}, of {model.gpus_per_engine} GPUs")
            taken = ()
        engines.append(taken)
        for gpu in taken:
            free.remove(gpu)
    return tuple(engines)


def _first_fit(free: list[Gpu], size: int) -> tuple[Gpu, ...] | None:
    """The first `size` free GPUs of one node that has as many."""
    for node in dict.fromkeys(node for node, _ in free):
        of_node = [gpu for gpu in free if gpu[0] == node]
        if len(of_node) >= size:
            return tuple(of_node[:size])
    return () if size == 0 else None
