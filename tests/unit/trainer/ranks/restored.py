"""Four processes that train a small model by FSDP, on one to three of them or on all as two replicas of two, and go on
from each other's files.

Prints, as JSON, how far each lies from the one that never stopped.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1
from torch.distributed.fsdp import ShardedStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.tensor import DTensor

from services.trainer.backends.port import CheckpointUnfit
from services.trainer.backends.restoring import restore_model, restore_optimizer
from services.trainer.sharded import Shards

RANKS = 4
MOVES = [("1", "2"), ("2", "1"), ("2", "2"), ("2", "3"), ("3", "2"), ("2x2", "2x2"), ("2x2", "3"), ("3", "2x2")]


class Model(torch.nn.Module):
    """Sizes that no number of ranks divides, a tied weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 6)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.Linear(6, 6, bias=False)])
        self.norm = torch.nn.LayerNorm(6)
        self.head = torch.nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.head(self.norm(hidden)) * self.scale


class Training:
    """One model on the first `ranks` processes; all processes make it, those call it."""

    def __init__(self, version: int, mesh: DeviceMesh, seed: int, use_orig_params: bool = False) -> None:
        torch.manual_seed(seed)
        self.version, self.mesh = version, mesh
        model = Model()
        if version == 1:
            wrapped = {
                "device_mesh": mesh,
                "device_id": torch.device("cpu"),
                "use_orig_params": use_orig_params,
                "sharding_strategy": ShardingStrategy.HYBRID_SHARD if mesh.ndim > 1 else ShardingStrategy.FULL_SHARD,
            }
            model.layers = torch.nn.ModuleList([Fsdp1(layer, **wrapped) for layer in model.layers])
            self.model: Any = Fsdp1(model, **wrapped)
        else:
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)

    def steps(self, *batches: int) -> None:
        for batch in batches:
            tokens = (torch.arange(12) * (batch + 2)) % 7
            loss = torch.nn.functional.cross_entropy(self.model(tokens), tokens.roll(1))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def sharded(self) -> Any:
        if self.version == 2:
            return nullcontext()
        return Fsdp1.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig())

    def save(self, directory: Path) -> None:
        """By the names that veRL gives its files."""
        rank, ranks = dist.get_rank(), self.mesh.size()
        directory.mkdir(parents=True, exist_ok=True)
        name = f"world_size_{ranks}_rank_{rank}.pt"
        with self.sharded():
            torch.save(self.model.state_dict(), directory / f"model_{name}")
            torch.save(self.optimizer.state_dict(), directory / f"optim_{name}")
        (directory / "fsdp_config.json").write_text(json.dumps({"FSDP_version": self.version, "world_size": ranks}))
        dist.barrier(None if self.mesh.ndim > 1 else self.mesh.get_group())

    def group(self) -> Any:
        """As veRL's checkpoint manager has it."""
        return self.model.process_group if self.version == 1 else None

    def restore(self, directory: Path) -> None:
        shards = Shards(directory)
        with self.sharded():
            restore_model(self.model, shards)
        restore_optimizer(self.optimizer, shards, self.group())

    def whole(self) -> dict[str, torch.Tensor]:
        with self.sharded():
            found = self.model.state_dict()
        return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def refusal(training: Training, directory: Path) -> str:
    try:
        restore_optimizer(training.optimizer, Shards(directory), training.group())
    except CheckpointUnfit as error:
        return str(error)
    return ""


def refusal_of_orig_params(mesh: DeviceMesh, directory: Path) -> str:
    """Each rank has moments of those parameters alone that it holds a part of."""
    training = Training(1, mesh, seed=0, use_orig_params=True)
    training.steps(1)
    training.save(directory)
    return refusal(training, directory)


def straight_on(version: int, mesh: DeviceMesh, directory: Path) -> tuple[dict[str, torch.Tensor], float]:
    """Two steps, files, two steps; and how far the last two went."""
    training = Training(version, mesh, seed=0)
    training.steps(1, 2)
    training.save(directory)
    before = {name: value.clone() for name, value in training.whole().items()}
    training.steps(3, 4)
    return training.whole(), distance(before, training.whole())


def gone_on(version: int, mesh: DeviceMesh, directory: Path) -> dict[str, torch.Tensor]:
    training = Training(version, mesh, seed=1)
    training.restore(directory)
    training.steps(3, 4)
    return training.whole()


def main(rank: int, root: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{root}/meeting", rank=rank, world_size=RANKS)
    meshes = {str(ranks): DeviceMesh("cpu", list(range(ranks)), mesh_dim_names=("fsdp",)) for ranks in (1, 2, 3)}
    meshes["2x2"] = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("ddp", "fsdp"))
    found: dict[str, Any] = {}
    straight = {}
    for version in (1, 2):
        for ranks, mesh in meshes.items():
            if rank < mesh.size():
                straight[ranks], moved = straight_on(version, mesh, Path(root, f"{version}.{ranks}"))
                found[f"FSDP{version}: {ranks} straight on"] = moved
        dist.barrier()
        for source, target in MOVES:
            if rank < meshes[target].size():
                restored = gone_on(version, meshes[target], Path(root, f"{version}.{source}"))
                if rank < meshes[source].size():
                    found[f"FSDP{version}: {source} -> {target}"] = distance(restored, straight[source])
        dist.barrier()
    if rank < 2:
        for version in (1, 2):
            found[f"FSDP{version}: refusal"] = refusal(
                Training(version, meshes["2"], 1), Path(root, f"{3 - version}.2")
            )
        found["original parameters"] = refusal_of_orig_params(meshes["2"], Path(root, "original"))
    if rank == 0:
        Path(root, "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(main, (sys.argv[1],), nprocs=RANKS)
