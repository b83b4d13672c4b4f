"""What may change about the machines: how many nodes, and how many GPUs on each."""

from services.config.section import Section


class ClusterConfig(Section):
    """The devices of a run; `gpu_per_node: 0` means the CPU, where `trainer_ranks` processes train together.

    `node_rank` is the node that a launcher starts its part on, from 0.
    """

    ray_address: str = "auto"
    node_num: int = 0
    gpu_per_node: int = 0
    node_rank: int = 0
    trainer_ranks: int | None = None
    total_gpu_num: int = 0
    rollout_gpu_num: int = 0
    auxiliary_model_gpu_num: int = 0
    explorer_gpu_num: int = 0
    trainer_gpu_num: int = 0
    trainer_node_num: int = 0
    trainer_gpu_num_per_node: int = 0

    @property
    def gpus(self) -> int:
        """All GPUs of the run, trainer's and explorers' together."""
        return max(self.node_num, 1) * self.gpu_per_node
