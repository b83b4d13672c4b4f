"""veRL's checkpoint manager, which saves as veRL does and loads what any number of ranks has saved.

Random states belong to ranks: on as many ranks each goes on with its own; on another number all are seeded anew, from
the rank and the step of the schedule.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.device import is_cuda_available
from verl.utils.fsdp_utils import fsdp_version, get_fsdp_state_ctx
from verl.workers.engine.fsdp import transformer_impl

from services.trainer.backends.restoring import restore_model, restore_optimizer, restore_schedule, seed, seed_of
from services.trainer.sharded import Shards, safely_loaded


class CheckpointManager(FSDPCheckpointManager):  # type: ignore[misc]
    """`load_checkpoint` runs no code of the files: veRL's own would. The ranks were seeded from `first_seed` on."""

    first_seed = 0

    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Parameters, optimizer, schedule and random states from the directory of one model.

        Raises:
            CheckpointUnreadable: files are absent or damaged.
            CheckpointUnfit: it is of another model, or of another FSDP.
        """
        shards = Shards(Path(local_path))
        with self._sharded():
            restore_model(self.model, shards)
        if self.optimizer is not None:
            restore_optimizer(self.optimizer, shards, self._group())
        self._restore_extra(shards)
        torch.distributed.barrier()

    def _sharded(self) -> Any:
        """FSDP1's state dict in pieces, as it was saved."""
        configs = [
            kind(offload_to_cpu=is_cuda_available) for kind in (ShardedStateDictConfig, ShardedOptimStateDictConfig)
        ]
        return get_fsdp_state_ctx(self.model, StateDictType.SHARDED_STATE_DICT, *configs)

    def _group(self) -> Any:
        """The ranks that share the vectors of FSDP1."""
        return self.model.process_group if fsdp_version(self.model) == 1 else None

    def _restore_extra(self, shards: Shards) -> None:
        is_own = shards.ranks == self.world_size
        extra = safely_loaded(shards.path("extra_state", self.rank if is_own else 0))
        if self.lr_scheduler is not None and extra["lr_scheduler"] is not None:
            restore_schedule(self.lr_scheduler, extra["lr_scheduler"])
        if is_own:
            self.load_rng_state(extra["rng"])
        else:
            steps = self.lr_scheduler.last_epoch if self.lr_scheduler is not None else 0
            seed(seed_of(self.first_seed, self.rank, steps))


def use_our_manager(first_seed: int) -> None:
    """veRL's engines ask their module for the manager."""
    CheckpointManager.first_seed = first_seed
    transformer_impl.FSDPCheckpointManager = CheckpointManager
