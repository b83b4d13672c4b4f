"""What a step leaves behind to be compared: its metrics, and every weight after it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Weights = dict[str, Any]

COMPARED = {
    "actor/loss": "actor/final_loss",
    "actor/pg_loss": "actor/pg_loss",
    "actor/grad_norm": "actor/grad_norm",
    "actor/lr": "actor/lr",
    "actor/kl_loss": "actor/kl_loss",
    "actor/entropy_loss": "actor/entropy_loss",
    "actor/ppo_kl": "actor/ppo_kl",
    "actor/pg_clipfrac": "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower": "actor/pg_clipfrac_lower",
    "critic/vf_loss": "critic/vf_loss",
    "critic/vf_clipfrac": "critic/vf_clipfrac",
    "critic/vpred_mean": "critic/vpred_mean",
    "critic/grad_norm": "critic/grad_norm",
    "critic/lr": "critic/lr",
}
"""Our names by veRL's."""


@dataclass(frozen=True)
class Step:
    """`weights` by the model (`actor`, `critic`), then by the parameter's name."""

    metrics: dict[str, float]
    weights: dict[str, Weights]


def weights_of(workers: Any, directory: Path) -> Weights:
    """All parameters of a worker group that has `write_weights`, in float32."""
    directory.mkdir(parents=True)
    workers.write_weights(str(directory), "float32")
    return dict(load_file(directory / "model.safetensors"))


def furthest(one: Weights, other: Weights) -> float:
    """The largest absolute difference of two models' parameters.

    Raises:
        KeyError: they do not have the same parameters.
    """
    if one.keys() != other.keys():
        raise KeyError(f"only one side has {sorted(one.keys() ^ other.keys())}")
    return max(float(np.abs(tensor - other[name]).max()) for name, tensor in one.items())
