"""How the experiences of an optimizer step are parted: over ranks, and on each into micro-batches."""

import math
from typing import Any

from services.config.tree import RunConfig
from services.config.verl.tree import Role, given, place_of


def data_ranks(config: RunConfig) -> int:
    """Ranks that each have sequences of their own: those that share sequences count once."""
    return max(1, config.trainer_ranks // config.trainer.ulysses_sequence_parallel_size)


def token_budget(config: RunConfig, role: Role = "actor", is_forward: bool = False) -> int:
    """Tokens of one micro-batch; as in Trinity-RFT twice the model length, shared by the sequence-parallel ranks."""
    usual = config.trainer.max_token_len_per_gpu
    found = _of_passes(config, role, "max_token_len_per_gpu", is_forward) or usual
    return int(found or math.ceil(2 * config.max_model_len / config.trainer.ulysses_sequence_parallel_size))


def micro_batch_size(config: RunConfig, role: Role, is_forward: bool = False) -> int:
    """Sequences of one micro-batch on one rank, where micro-batches are not made by their tokens."""
    return int(_of_passes(config, role, "micro_batch_size_per_gpu", is_forward) or config.train_batch_size)


def is_dynamic(config: RunConfig, role: Role = "actor") -> bool:
    """Whether micro-batches are made by their tokens rather than their number of sequences."""
    asked = given(config, f"{place_of(role)}.log_prob_use_dynamic_bsz") if role == "reference" else None
    return config.trainer.use_dynamic_bsz if asked is None else bool(asked)


def epochs(config: RunConfig, role: Role) -> int:
    """Optimizer updates of one step, each on all of its experiences; the critic has as many as the policy."""
    own = given(config, f"{place_of(role)}.ppo_epochs")
    return int(own or given(config, f"{place_of('actor')}.ppo_epochs") or 1)


def _of_passes(config: RunConfig, role: Role, name: str, is_forward: bool) -> Any:
    """A size that a role has for its updates, or another for passes that are forward alone."""
    place = place_of(role)
    if role == "reference":
        own = given(config, f"{place}.log_prob_{name}")
        return own or given(config, f"{place_of('actor')}.ppo_{name}")
    forward = given(config, f"{place}.ppo_infer_{name}") if is_forward else None
    return forward or given(config, f"{place}.ppo_{name}")
