"""A model and its optimizer, restored from the files of any number of ranks. Each rank reads only what it holds itself.

FSDP2 keeps every parameter, and each of its moments, as a tensor that is cut along its first dimension. FSDP1 does so
with parameters, but its optimizer has one long vector for a whole layer, of which each rank holds a part.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim.lr_scheduler import LambdaLR

from services.trainer.backends.port import CheckpointUnfit
from services.trainer.sharded import Pieced, Shards, in_a_row, pieced

_SEEDS_APART = 100_003
"""More than there are ranks."""


def restore_model(module: torch.nn.Module, shards: Shards) -> None:
    """Parameters and buffers; of FSDP1 in the context that makes its state dict a sharded one.

    Raises:
        CheckpointUnfit: the checkpoint is of another model.
    """
    target, found = module.state_dict(), shards.model()
    _assert_same(shards, sorted(target), sorted(found))
    for name, tensor in target.items():
        _assert_same(shards, (name, list(tensor.shape)), (name, list(found[name].shape)))
        _fill(tensor, found[name])
    module.load_state_dict(target)


def restore_optimizer(optimizer: torch.optim.Optimizer, shards: Shards, group: Any = None) -> None:
    """Moments; the settings stay those that the optimizer was made with. `group` holds the ranks that share the vectors
    of FSDP1.

    Raises:
        CheckpointUnfit: the checkpoint is of another model, or of another FSDP.
    """
    states, row = shards.of_ranks("optim"), shards.row()
    parameters = [each for entry in optimizer.param_groups for each in entry["params"]]
    places = [place for entry in states[0]["param_groups"] for place in entry["params"]]
    _assert_same(shards, len(parameters), len(places))
    restored = {}
    for number, (place, parameter) in enumerate(zip(places, parameters, strict=True)):
        having = [place in state["state"] for state in states]
        if not any(having):
            continue  # it was not trained
        if not all(having):
            raise CheckpointUnfit(
                f"{shards.directory} holds moments of parameter {place} on {sum(having)} of {len(having)} ranks, as "
                "FSDP 1 leaves them with fsdp_config.use_orig_params: no run goes on from that. Its weights can be "
                "converted: trinity convert checkpoint"
            )
        of_ranks = [states[rank]["state"][place] for rank in row]
        restored[number] = {
            name: _moment([each[name] for each in of_ranks], parameter, shards, group) for name in of_ranks[0]
        }
    optimizer.load_state_dict({"state": restored, "param_groups": optimizer.state_dict()["param_groups"]})


def restore_schedule(schedule: LambdaLR, found: Mapping[str, Any]) -> None:
    """Where the schedule stands; its shape and the learning rates that it scales stay those that it was made with."""
    schedule.load_state_dict(schedule.state_dict() | {name: found[name] for name in ("last_epoch", "_step_count")})
    scales = [scale(schedule.last_epoch) for scale in schedule.lr_lambdas]
    rates = [rate * scale for rate, scale in zip(schedule.base_lrs, scales, strict=True)]
    for entry, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        entry["lr"] = rate
    schedule._last_lr = rates


def seed_of(first_seed: int, rank: int, steps: int) -> int:
    """Of a rank that has no random states of its own to go on with, after so many steps of the schedule."""
    return first_seed + rank + _SEEDS_APART * steps


def seed(number: int) -> None:
    """Begin every random state anew, so that a run that begins from the model can be made again: veRL seeds none."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def _moment(of_ranks: Sequence[Any], parameter: torch.Tensor, shards: Shards, group: Any) -> Any:
    """This rank's part of what the optimizer keeps for a parameter."""
    first = of_ranks[0]
    if not isinstance(first, torch.Tensor) or first.dim() == 0:
        return first  # how many steps there were
    is_cut, is_in_a_row = isinstance(first, DTensor), isinstance(parameter, DTensor)
    _assert_same(shards, is_in_a_row, is_cut)
    target = torch.zeros_like(parameter, dtype=first.dtype)
    if is_cut:
        found = pieced(of_ranks)
        _assert_same(shards, list(target.shape), list(found.shape))
        _fill(target, found)
    else:
        found = in_a_row(of_ranks)
        found.copy_to(target, (_start(target, group, shards, found),))
    return target


def _start(target: torch.Tensor, group: Any, shards: Shards, found: Pieced) -> int:
    """Where this rank's part of a vector begins. The ranks' parts may add up to a few numbers more: padding."""
    sizes: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(sizes, len(target), group)
    if abs(sum(sizes) - found.shape[0]) >= max(len(sizes), len(found.pieces)):
        _assert_same(shards, sum(sizes), found.shape[0])
    return sum(sizes[: torch.distributed.get_rank(group)])


def _fill(target: torch.Tensor, found: Pieced) -> None:
    if isinstance(target, DTensor):
        _, offsets = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
        local = target._local_tensor
    else:
        local, offsets = target, (0,) * target.dim()
    found.copy_to(local, offsets)


def _assert_same(shards: Shards, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise CheckpointUnfit(
            f"{shards.directory} is of another model, or of another way to shard it: this one has {_short(ours)}, the "
            f"checkpoint {_short(theirs)}. Set model.model_path and trainer.trainer_strategy as they were"
        )


def _short(what: object) -> str:
    text = str(what)
    return text if len(text) < 200 else f"{text[:200]} ..."
