"""One optimizer step on a batch: what the algorithm needs is computed, in this order, then the models are updated.

Reference log-probs, the trainer's own log-probs and what they correct, KL penalty, values, advantages, critic, policy.
The state beside the models, which a checkpoint holds too, are the coefficients of KL terms that adapt.
"""

import json
import time
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from services.config.derive import resolved
from services.config.tree import RunConfig
from services.trainer.algorithms.advantages import advantage
from services.trainer.algorithms.divergence import kl
from services.trainer.backends.port import Backend, Floats, Measure, Sequence
from services.trainer.batches import described, judged, sequences
from services.trainer.comparing import compared
from services.trainer.demands import demands
from services.trainer.estimation import estimated
from services.trainer.intake import Batch
from services.trainer.rewards import KlCoefficient, kl_of_actions, mean_kl, token_rewards

STATE_FILE = "learner.json"

Measured = dict[Measure, list[Floats]]
_INPUTS: dict[Measure, str] = {"logprob": "old_logprob", "entropy": "entropy", "nec": "nec"}


class Learner:
    """The algorithm of a run at work on a backend."""

    def __init__(self, config: RunConfig, backend: Backend) -> None:
        config = resolved(config)
        algorithm = config.algorithm
        self._backend = backend
        self._demands = demands(config)
        self._advantage = advantage(algorithm.advantage_fn or "", **(algorithm.advantage_fn_args or {}))
        self._penalty_kl = kl(algorithm.kl_penalty_fn or "none", **(algorithm.kl_penalty_fn_args or {}))
        self._penalty = _coefficient(algorithm.kl_penalty_fn_args)
        self._loss = _coefficient(algorithm.kl_loss_fn_args)
        self._correction = algorithm.rollout_correction
        self._critic_warmup = config.trainer.critic_warmup if self._demands.critic else 0

    def start(self, checkpoint: Path | None) -> None:
        """Begin from the model, or go on from a checkpoint."""
        self._backend.start(checkpoint)
        path = checkpoint / STATE_FILE if checkpoint else None
        if path is not None and path.is_file():  # a checkpoint of an import has none
            state = json.loads(path.read_text(encoding="utf-8"))
            self._penalty.value, self._loss.value = state["kl_penalty_coef"], state["kl_loss_coef"]

    def write_checkpoint(self, directory: Path) -> None:
        """Write all that `start` needs to go on exactly from here."""
        self._backend.write_checkpoint(directory)
        state = {"kl_penalty_coef": self._penalty.value, "kl_loss_coef": self._loss.value}
        (directory / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def write_weights(self, directory: Path, dtype: str) -> None:
        """Write the present weights in Hugging Face format."""
        self._backend.write_weights(directory, dtype)

    def learn(self, batch: Batch, step: int) -> dict[str, float]:
        """Make step `step`. Returns its metrics by Trinity-RFT's names.

        Raises:
            ValueError: the experiences lack what the algorithm needs.
        """
        metrics = described(batch, step)
        rows = self._referenced(sequences(batch.groups, batch.experts), metrics)
        measured = self._measured(rows, metrics)
        if self._demands.own_logprobs:
            rows = self._compared(rows, measured["logprob"], metrics)
        usual = self._estimated([row for row in rows if not row.is_expert], measured, metrics)
        if self._demands.critic:
            with _timed(metrics, "time/update_critic"):
                metrics |= self._backend.update_critic(usual)
        self._update_actor([*usual, *(row for row in rows if row.is_expert)], step, metrics)
        return metrics

    def _referenced(self, rows: list[Sequence], metrics: dict[str, float]) -> list[Sequence]:
        """With the log-probs of the reference policy, where they are asked for."""
        if not self._demands.reference:
            return rows
        with _timed(metrics, "time/ref"):
            reference = self._backend.reference_logprobs(rows)
        return [replace(row, reference_logprobs=each) for row, each in zip(rows, reference, strict=True)]

    def _measured(self, rows: list[Sequence], metrics: dict[str, float]) -> Measured:
        """What is asked for of the policy at the start of the batch, in one forward pass."""
        if not self._demands.measures:
            return {}
        with _timed(metrics, "time/old_log_prob"):
            return self._backend.measured(rows, self._demands.measures)

    def _compared(self, rows: list[Sequence], own: Rows[Floats], metrics: dict[str, float]) -> list[Sequence]:
        """With the trainer's own log-probs, corrected for what the sampler's are off."""
        if self._demands.is_sampled:
            rows, found = compared(rows, own, self._correction)
            metrics |= found
        if self._demands.keeps_sampled:
            return [replace(row, proximal_logprobs=each) for row, each in zip(rows, own, strict=True)]
        return [replace(row, old_logprobs=each) for row, each in zip(rows, own, strict=True)]

    def _rewards(self, rows: Rows[Sequence], metrics: dict[str, float]) -> list[Floats]:
        if not self._demands.kl_penalty:
            return token_rewards(rows)
        found = kl_of_actions(rows, self._penalty_kl)
        current, coef = mean_kl(rows, found), self._penalty.value
        self._penalty.follow(current, len(rows))
        metrics |= {"critic/kl": current, "critic/kl_coef": coef}
        metrics |= {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coef}
        return token_rewards(rows, [np.float32(coef) * each for each in found])

    def _estimated(self, rows: list[Sequence], measured: Measured, metrics: dict[str, float]) -> list[Sequence]:
        """With values, where there is a critic, and advantages. Usual rows come first in what was measured."""
        rewards = self._rewards(rows, metrics)
        if self._demands.critic:
            with _timed(metrics, "time/values"):
                values = self._backend.values(rows)
            rows = [replace(row, values=each) for row, each in zip(rows, values, strict=True)]
        more = {_INPUTS[name]: found[: len(rows)] for name, found in measured.items()}
        with _timed(metrics, "time/adv"):
            rows, told = estimated(rows, self._advantage, rewards, more)
        metrics |= {f"advantage/{name}": value for name, value in told.items()}
        metrics |= judged(rows, rewards)
        return rows

    def _update_actor(self, rows: list[Sequence], step: int, metrics: dict[str, float]) -> None:
        tokens = float(sum(len(row.tokens) for row in rows))
        metrics["perf/total_num_tokens"] = tokens
        if step <= self._critic_warmup:
            return
        with _timed(metrics, "time/update_actor"):
            metrics |= self._backend.update_actor(rows, step, self._loss.value if self._demands.kl_loss else 0.0)
        if "actor/kl_loss" in metrics:
            self._loss.follow(metrics["actor/kl_loss"], len(rows))


def _coefficient(arguments: dict[str, Any] | None) -> KlCoefficient:
    given = arguments or {}
    target = given.get("target_kl") if given.get("adaptive") else None
    return KlCoefficient(float(given.get("kl_coef", 0.0)), target, float(given.get("horizon") or 10_000.0))


@contextmanager
def _timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    metrics[name] = time.monotonic() - started
