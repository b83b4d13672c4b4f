"""What may change about the pace of a run: how weights travel, and how far sampling may run ahead."""

from typing import Literal

from services.config.section import Section

SyncMethod = Literal["checkpoint", "memory", "nccl"]
SyncStyle = Literal[
    "fixed",
    "dynamic_by_explorer",
    "dynamic_by_trainer",
    "explorer_driven",
    "trainer_driven",
    "fully_async",
]


class SynchronizerConfig(Section):
    """Pace, staleness bound, and the times after which a silent member or an unfinished task is given up (seconds).

    Batch k starts under version `sync_interval * floor(max(0, k - sync_offset) / sync_interval)` or a later one.
    """

    sync_method: SyncMethod = "checkpoint"
    sync_style: SyncStyle = "fixed"
    sync_interval: int = 1
    explorer_sync_interval: int | None = None
    trainer_sync_interval: int | None = None
    sync_offset: int = 0
    sync_timeout: float = 3600.0
    max_staleness: int | None = None
    keep_versions: int = -1
    task_lease: float = 15.0
    max_deliver: int = 4
    heartbeat_interval: float = 2.0
    member_timeout: float = 10.0
    lease_ttl: float = 10.0
    group_name: str = "rollout_weight_sync"
    wait_for_checkpoint: bool = False
    explorer_world_size: int | None = None
    ray_namespace: str = ""
