"""The port of a training backend. Its calls block; the trainer service runs them off the event loop."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Measure = Literal["logprob", "entropy", "nec"]


@dataclass(frozen=True)
class Sequence:
    """One response ready to train on: `T` tokens, the first `prompt_length` of them the prompt.

    The other arrays have one element per response token; those that may be None are there where the algorithm asks for
    them. `old_logprobs` are what the policy loss compares with: the sampler's, or the trainer's own at the start of the
    batch; `proximal_logprobs` are the trainer's own beside the sampler's. `weights` multiply the policy loss of each
    token. `group` counts the groups of the batch from 0. `baseline` is a reward to compare `reward` with.
    """

    tokens: npt.NDArray[np.int32]
    prompt_length: int
    action_mask: npt.NDArray[np.uint8]
    old_logprobs: Floats
    advantages: Floats
    temperature: float = 1.0
    reward: float = 0.0
    group: int = 0
    position: int = 0
    step: int = 0
    state: str = ""
    step_reward: float | None = None
    baseline: float | None = None
    is_expert: bool = False
    is_truncated: bool = False
    teacher_logprobs: Floats | None = None
    reference_logprobs: Floats | None = None
    proximal_logprobs: Floats | None = None
    weights: Floats | None = None
    values: Floats | None = None
    returns: Floats | None = None

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True)
class Vocabulary:
    """Token ids are below `size`; `tokenizer` is the fingerprint of what makes them, empty where it is not known."""

    size: int
    tokenizer: str = ""


class Backend(Protocol):
    """A model under training, with its critic and its reference policy where the algorithm has them.

    What is computed for sequences comes back in their order: for each one a number per response token.
    """

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What the model reads, once it has been started; None where that is not known."""

    def start(self, checkpoint: Path | None) -> None:
        """Load the models, or all of a checkpoint: parameters, optimizers, schedules, random states.

        Raises:
            CheckpointUnfit: the checkpoint lacks a model that is trained.
        """

    def measured(self, sequences: Rows[Sequence], measures: Rows[Measure]) -> dict[Measure, list[Floats]]:
        """Of the present policy where each response token was sampled, at its sequence's temperature, in one pass.

        `logprob` is the token's, `entropy` the policy's in nats, `nec` its mean over the vocabulary of `p (H + log p)`.
        """

    def reference_logprobs(self, sequences: Rows[Sequence]) -> list[Floats]:
        """Log-probs of the response tokens under the weights that the run began with."""

    def values(self, sequences: Rows[Sequence]) -> list[Floats]:
        """The critic's value of the state before each response token."""

    def update_critic(self, sequences: Rows[Sequence]) -> dict[str, float]:
        """One optimizer step of the critic towards `returns`. Returns metrics by Trinity-RFT's names."""

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        """One optimizer step of the policy, step `step` of the trainer, with `kl_coef` times the KL loss.

        Returns metrics by Trinity-RFT's names.
        """

    def write_weights(self, directory: Path, dtype: str) -> None:
        """Write the present weights as safetensors in Hugging Face layout, with configuration and tokenizer."""

    def write_checkpoint(self, directory: Path) -> None:
        """Write everything that `start` needs to go on exactly from here."""

    def stop(self) -> None: ...


class CheckpointUnfit(Exception):
    """The checkpoint was made by an algorithm that trains other models than this one does."""
