"""One optimizer step on a batch: what the algorithm needs is computed, in this order, then the models are updated.

Reference log-probs, the trainer's own log-probs, KL penalty, values, advantages, critic, policy. The state beside the
models, which a checkpoint holds too, are the coefficients of KL terms that adapt.
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
from services.trainer.backends.port import Backend, Floats, Sequence
from services.trainer.batches import described, judged, of_actions, sequences
from services.trainer.demands import demands
from services.trainer.estimation import estimated
from services.trainer.intake import Batch
from services.trainer.rewards import KlCoefficient, kl_of_actions, mean_kl, token_rewards

STATE_FILE = "learner.json"


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
        self._critic_warmup = config.trainer.warmup_of_critic if self._demands.critic else 0

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

    def learn(self, batch: Batch, step: int) -> dict[str, float]:
        """Make step `step`. Returns its metrics by Trinity-RFT's names.

        Raises:
            ValueError: the experiences lack what the algorithm needs.
        """
        metrics = described(batch, step)
        rows = self._scored(sequences(batch.groups, batch.experts), metrics)
        own = self._estimated([row for row in rows if not row.is_expert], metrics)
        if self._demands.critic:
            with _timed(metrics, "time/update_critic"):
                metrics |= self._backend.update_critic(own)
        self._update_actor([*own, *(row for row in rows if row.is_expert)], step, metrics)
        return metrics

    def _scored(self, rows: list[Sequence], metrics: dict[str, float]) -> list[Sequence]:
        """With the log-probs of the reference policy, and the trainer's own, where they are asked for."""
        if self._demands.reference:
            with _timed(metrics, "time/ref"):
                reference = self._backend.reference_logprobs(rows)
            rows = [replace(row, reference_logprobs=each) for row, each in zip(rows, reference, strict=True)]
        if self._demands.own_logprobs:
            with _timed(metrics, "time/old_log_prob"):
                own = self._backend.logprobs(rows)
            sampled = of_actions(rows, [row.old_logprobs for row in rows])
            metrics["rollout_corr/kl"] = _mean(sampled - of_actions(rows, own))
            rows = [self._rebased(row, each) for row, each in zip(rows, own, strict=True)]
        return rows

    def _rebased(self, row: Sequence, own: Floats) -> Sequence:
        keeps = self._demands.keeps_sampled
        return replace(row, proximal_logprobs=own) if keeps else replace(row, old_logprobs=own)

    def _rewards(self, rows: Rows[Sequence], metrics: dict[str, float]) -> list[Floats]:
        if not self._demands.kl_penalty:
            return token_rewards(rows)
        found = kl_of_actions(rows, self._penalty_kl)
        current, coef = mean_kl(rows, found), self._penalty.value
        self._penalty.follow(current, len(rows))
        metrics |= {"critic/kl": current, "critic/kl_coef": coef}
        return token_rewards(rows, [np.float32(coef) * each for each in found])

    def _estimated(self, rows: list[Sequence], metrics: dict[str, float]) -> list[Sequence]:
        """With values, where there is a critic, and advantages."""
        rewards = self._rewards(rows, metrics)
        if self._demands.critic:
            with _timed(metrics, "time/values"):
                values = self._backend.values(rows)
            rows = [replace(row, values=each) for row, each in zip(rows, values, strict=True)]
        more = {"entropy": self._backend.entropies(rows)} if self._demands.entropies else {}
        with _timed(metrics, "time/adv"):
            rows, measured = estimated(rows, self._advantage, rewards, more)
        metrics |= {f"advantage/{name}": value for name, value in measured.items()}
        metrics |= judged(rows, rewards)
        return rows

    def _update_actor(self, rows: list[Sequence], step: int, metrics: dict[str, float]) -> None:
        tokens = float(sum(len(row.tokens) for row in rows))
        metrics |= {"global_seqlen/mean": tokens / len(rows), "perf/total_num_tokens": tokens}
        if step <= self._critic_warmup:
            return
        with _timed(metrics, "time/update_actor"):
            metrics |= self._backend.update_actor(rows, step, self._loss.value if self._demands.kl_loss else 0.0)
        if "actor/kl_loss" in metrics:
            self._loss.follow(metrics["actor/kl_loss"], len(rows))
        seconds = metrics["time/update_actor"]
        metrics |= {"perf/throughput": tokens / seconds, "timing_per_token_ms/update_actor": 1000 * seconds / tokens}


def _coefficient(arguments: dict[str, Any] | None) -> KlCoefficient:
    given = arguments or {}
    target = given.get("target_kl") if given.get("adaptive") else None
    return KlCoefficient(float(given.get("kl_coef", 0.0)), target, float(given.get("horizon") or 10_000.0))


def _mean(values: Floats) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else 0.0


@contextmanager
def _timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    metrics[name] = time.monotonic() - started
