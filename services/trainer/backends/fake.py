"""A training backend for tests: its whole state is a digest of the batches that it was given, in order."""

import hashlib
import json
import time
from pathlib import Path

from services.inference.fake import write_fake_weights
from services.trainer.backends.port import Sequence, Vocabulary

STATE_FILE = "fake_state.json"


class FakeBackend:
    """`services.trainer.backends.port.Backend` without a model. Equal digests mean equal training."""

    def __init__(self, seconds_per_step: float = 0.02, seconds_per_checkpoint: float = 0.0) -> None:
        self._seconds_per_step = seconds_per_step
        self._seconds_per_checkpoint = seconds_per_checkpoint
        self._step = 0
        self._digest = hashlib.sha256(b"start").hexdigest()

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(size=256)

    def start(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            state = json.loads((checkpoint / "actor" / STATE_FILE).read_text(encoding="utf-8"))
            self._step, self._digest = state["step"], state["digest"]

    def train(self, sequences: list[Sequence]) -> dict[str, float]:
        time.sleep(self._seconds_per_step)
        hasher = hashlib.sha256(self._digest.encode())
        for sequence in sequences:
            hasher.update(sequence.tokens.tobytes() + sequence.advantages.tobytes())
        self._digest = hasher.hexdigest()
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
