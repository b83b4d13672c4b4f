"""A training backend for tests: its whole state is a digest of the batches that it was given, in order."""

import hashlib
import json
import time
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.inference.fake import write_fake_weights
from services.trainer.backends.port import Floats, Measure, Sequence, Vocabulary

STATE_FILE = "fake_state.json"
REFERENCE_LAG = 0.25
VALUE = 0.5


class FakeBackend:
    """`services.trainer.backends.port.Backend` without a model. Equal digests mean equal training.

    Its policy has the sampler's log-probs, their negatives as entropy, and a `nec` of 0; its reference policy has
    `REFERENCE_LAG` less, and each of its values is `VALUE`.
    """

    def __init__(self, seconds_per_step: float = 0.02, seconds_per_checkpoint: float = 0.0) -> None:
        self._seconds_per_step = seconds_per_step
        self._seconds_per_checkpoint = seconds_per_checkpoint
        self._step = 0
        self._digest = hashlib.sha256(b"start").hexdigest()

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(size=256)

    @property
    def digest(self) -> str:
        """Of all that it was trained on."""
        return self._digest

    def start(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            state = json.loads((checkpoint / "actor" / STATE_FILE).read_text(encoding="utf-8"))
            self._step, self._digest = state["step"], state["digest"]

    def measured(self, sequences: Rows[Sequence], measures: Rows[Measure]) -> dict[Measure, list[Floats]]:
        sampled = [sequence.old_logprobs for sequence in sequences]
        found: dict[Measure, list[Floats]] = {
            "logprob": sampled,
            "entropy": [-each for each in sampled],
            "nec": [np.zeros_like(each) for each in sampled],
        }
        return {name: found[name] for name in measures}

    def reference_logprobs(self, sequences: Rows[Sequence]) -> list[Floats]:
        return [sequence.old_logprobs - np.float32(REFERENCE_LAG) for sequence in sequences]

    def values(self, sequences: Rows[Sequence]) -> list[Floats]:
        return [np.full_like(sequence.old_logprobs, VALUE) for sequence in sequences]

    def update_critic(self, sequences: Rows[Sequence]) -> dict[str, float]:
        self._take([sequence.returns for sequence in sequences])
        return {"critic/vf_loss": 0.0, "critic/grad_norm": 0.0, "critic/lr": 0.0}

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        time.sleep(self._seconds_per_step)
        self._take([array for each in sequences for array in (each.tokens, each.advantages)])
        self._step += 1
        return {"actor/pg_loss": 0.0, "actor/grad_norm": 0.0, "actor/lr": 0.0}

    def write_weights(self, directory: Path, dtype: str) -> None:
        write_fake_weights(directory, self._step)

    def write_checkpoint(self, directory: Path) -> None:
        (directory / "actor").mkdir()
        time.sleep(self._seconds_per_checkpoint)
        state = {"step": self._step, "digest": self._digest}
        (directory / "actor" / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def stop(self) -> None:
        return None

    def _take(self, arrays: list[npt.NDArray[Any] | None]) -> None:
        hasher = hashlib.sha256(self._digest.encode())
        for array in arrays:
            hasher.update(b"" if array is None else array.tobytes())
        self._digest = hasher.hexdigest()
