"""The port of a training backend. Its calls block; the trainer service runs them off the event loop."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Sequence:
    """One response ready to train on: `T` tokens, the first `prompt_length` of them the prompt.

    The other arrays have one element per response token.
    """

    tokens: npt.NDArray[np.int32]
    prompt_length: int
    action_mask: npt.NDArray[np.uint8]
    old_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    temperature: float = 1.0


@dataclass(frozen=True)
class Vocabulary:
    """Token ids are below `size`; `tokenizer` is the fingerprint of what makes them, empty where it is not known."""

    size: int
    tokenizer: str = ""


class Backend(Protocol):
    """A model under training."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What the model reads, once it has been started; None where that is not known."""

    def start(self, checkpoint: Path | None) -> None:
        """Load the model, or all of a checkpoint: parameters, optimizer, schedule, random states."""

    def train(self, sequences: list[Sequence]) -> dict[str, float]:
        """One optimizer step on a batch. Returns metrics by Trinity-RFT's names."""

    def write_weights(self, directory: Path, dtype: str) -> None:
        """Write the present weights as safetensors in Hugging Face layout, with configuration and tokenizer."""

    def write_checkpoint(self, directory: Path) -> None:
        """Write everything that `start` needs to go on exactly from here."""

    def stop(self) -> None: ...
