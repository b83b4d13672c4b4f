"""From a batch of groups to sequences with advantages, and the metrics that describe them."""

from statistics import fmean

import numpy as np
import torch

from schemas.experiences import Experience, GroupSampled
from services.trainer.algorithms.advantages import Advantage
from services.trainer.backends.port import Sequence
from services.trainer.intake import Batch


def sequences(batch: Batch, advantage: Advantage) -> list[Sequence]:
    """One sequence per experience, in stream order, with its group's advantage on every token."""
    return [
        _sequence(experience, value)
        for group in batch.groups
        for experience, value in zip(group.experiences, _advantages(group, advantage), strict=True)
    ]


def described(batch: Batch, prepared: list[Sequence], step: int) -> dict[str, float]:
    """Metrics of a batch by Trinity-RFT's names. `step` is the trainer step that it makes."""
    experiences = batch.experiences
    metrics: dict[str, float] = {}
    metrics |= _spread("critic/score", [experience.reward for experience in experiences])
    metrics |= _spread("critic/rewards", [experience.reward for experience in experiences])
    metrics |= _spread("critic/advantages", [float(sequence.advantages.mean()) for sequence in prepared])
    metrics |= _lengths(
        "response_length", [e.response_length for e in experiences], [e.is_truncated for e in experiences]
    )
    metrics |= _lengths("prompt_length", [e.prompt_length for e in experiences], [False] * len(experiences))
    versions = np.concatenate([experience.token_versions for experience in experiences])
    metrics |= _spread("sample/model_version", versions.tolist())
    metrics |= _spread("sample/model_version_drift", (step - 1 - versions).tolist())
    metrics["sample/task_count"] = float(len(batch.groups))
    metrics["sample/experience_count"] = float(len(experiences))
    for name in sorted({name for experience in experiences for name in experience.metrics}):
        values = [experience.metrics[name] for experience in experiences if name in experience.metrics]
        metrics |= _spread(f"sample/{name}", values)
    return metrics


def _advantages(group: GroupSampled, advantage: Advantage) -> list[float]:
    rewards_P_G = torch.tensor([[experience.reward for experience in group.experiences]], dtype=torch.float32)
    return [float(value) for value in advantage(rewards_P_G)[0]]


def _sequence(experience: Experience, advantage: float) -> Sequence:
    return Sequence(
        tokens=experience.tokens,
        prompt_length=experience.prompt_length,
        action_mask=experience.action_mask,
        old_logprobs=experience.logprobs,
        advantages=np.full(experience.response_length, advantage, dtype=np.float32),
        temperature=experience.temperature or 1.0,
    )


def _lengths(name: str, lengths: list[int], clipped: list[bool]) -> dict[str, float]:
    return {**_spread(name, [float(length) for length in lengths]), f"{name}/clip_ratio": fmean(clipped)}


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}/mean": fmean(values), f"{name}/max": float(max(values)), f"{name}/min": float(min(values))}
