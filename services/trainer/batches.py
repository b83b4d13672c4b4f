"""From a batch of groups to sequences, and the metrics that describe them."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from statistics import fmean

import numpy as np

from schemas.experiences import BASELINE_METRIC, Experience, GroupSampled
from services.trainer.backends.port import Floats, Sequence
from services.trainer.intake import Batch


def sequences(groups: Iterable[GroupSampled], experts: Iterable[GroupSampled] = ()) -> list[Sequence]:
    """One sequence per experience, in stream order, experts last, with advantages of zero."""
    rows: list[Sequence] = []
    numbered = [*((group, False) for group in groups), *((group, True) for group in experts)]
    for number, (group, is_expert) in enumerate(numbered):
        rows += [_sequence(experience, number, is_expert) for experience in group.experiences]
    return rows


def described(batch: Batch, step: int) -> dict[str, float]:
    """Metrics of the experiences by Trinity-RFT's names. `step` is the trainer step that they make."""
    experiences = batch.experiences
    metrics: dict[str, float] = {}
    metrics |= _lengths(
        "response_length", [e.response_length for e in experiences], [e.is_truncated for e in experiences]
    )
    cut_off = ["prompt_truncated" in e.metrics for e in experiences]
    metrics |= _lengths("prompt_length", [e.prompt_length for e in experiences], cut_off)
    versions = np.concatenate([experience.token_versions for experience in experiences])
    metrics |= spread("sample/model_version", versions.tolist())
    metrics |= spread("sample/model_version_drift", (step - 1 - versions).tolist())
    metrics |= _of_reused(batch, step)
    metrics["sample/task_count"] = float(len(batch.groups))
    metrics["sample/experience_count"] = float(len(experiences))
    for name in sorted({name for experience in experiences for name in experience.metrics}):
        values = [experience.metrics[name] for experience in experiences if name in experience.metrics]
        metrics |= spread(f"sample/{name}", values)
    return metrics


def _of_reused(batch: Batch, step: int) -> dict[str, float]:
    """How often experiences are trained on with this step, and how stale those are that were before."""
    again = batch.experiences[: batch.drawn.experiences]
    if not again:
        return {}
    versions = np.concatenate([experience.token_versions for experience in again])
    metrics = spread("sample/use_count", [float(uses) for uses in batch.uses])
    return metrics | spread("sample/reused_version_drift", (step - 1 - versions).tolist())


def judged(rows: Rows[Sequence], token_rewards: Rows[Floats]) -> dict[str, float]:
    """Metrics of rewards, advantages, values and returns, by Trinity-RFT's names.

    `score` is the reward, `rewards` what is left of it after a KL penalty; the others are of action tokens.
    """
    metrics = spread("critic/score", [row.reward for row in rows])
    metrics |= spread("critic/rewards", [float(rewards.sum(dtype=np.float64)) for rewards in token_rewards])
    metrics |= _of_actions("critic/advantages", rows, [row.advantages for row in rows])
    returns = [row.returns for row in rows if row.returns is not None]
    if len(returns) == len(rows):
        metrics |= _of_actions("critic/returns", rows, returns)
    values = [row.values for row in rows if row.values is not None]
    if len(values) == len(rows):
        metrics |= _of_actions("critic/values", rows, values)
        if len(returns) == len(rows):
            metrics |= _explained(of_actions(rows, returns), of_actions(rows, values))
    return metrics


def _explained(returns: Floats, values: Floats) -> dict[str, float]:
    """How much of the returns' variance the values explain, as veRL has it: 1 is all of it."""
    if len(returns) < 2:
        return {}
    unexplained, whole = (float(np.var(each, ddof=1, dtype=np.float64)) for each in (returns - values, returns))
    return {"critic/vf_explained_var": 1.0 - unexplained / (whole + 1e-5)}


def of_actions(rows: Rows[Sequence], arrays: Rows[Floats]) -> Floats:
    """The elements that belong to action tokens, all sequences in a row."""
    return np.concatenate([array[row.action_mask > 0] for row, array in zip(rows, arrays, strict=True)])


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Mean, maximum and minimum under `name`."""
    return {f"{name}/mean": fmean(values), f"{name}/max": float(max(values)), f"{name}/min": float(min(values))}


def _of_actions(name: str, rows: Rows[Sequence], arrays: Rows[Floats]) -> dict[str, float]:
    values = of_actions(rows, arrays).tolist()
    return spread(name, values) if values else {}


def _sequence(experience: Experience, group: int, is_expert: bool) -> Sequence:
    return Sequence(
        tokens=experience.tokens,
        prompt_length=experience.prompt_length,
        action_mask=experience.action_mask,
        old_logprobs=experience.logprobs,
        advantages=np.zeros(experience.response_length, dtype=np.float32),
        temperature=experience.temperature or 1.0,
        reward=experience.reward,
        group=group,
        position=experience.position,
        step=experience.step,
        state=experience.state,
        step_reward=experience.step_reward,
        baseline=experience.metrics.get(BASELINE_METRIC),
        is_expert=is_expert,
        is_truncated=experience.is_truncated,
        teacher_logprobs=experience.teacher_logprobs if len(experience.teacher_logprobs) else None,
    )


def _lengths(name: str, lengths: list[int], clipped: list[bool]) -> dict[str, float]:
    return {**spread(name, [float(length) for length in lengths]), f"{name}/clip_ratio": fmean(clipped)}
