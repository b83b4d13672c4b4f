"""The port of an inference engine: it samples token ids and knows which weight version sampled each.

An engine that claims version `v` computes the log-probs of version `v`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.weights import WeightVersion


@dataclass(frozen=True)
class Sampling:
    """Sampling arguments of one request. `temperature` 0 is greedy; `top_k` -1 is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Completion:
    """One sampled response of `T` tokens. `logprobs` are natural log under the weights named by `token_versions`."""

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    token_versions: npt.NDArray[np.int32]
    text: str
    is_truncated: bool


Heard = Callable[[Sequence[int], Sequence[float], str], None]
"""Told the tokens, their log-probs and the text of a response so far, again and again while it is sampled."""


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is, for heartbeats and metrics."""

    requests: int = 0
    tokens_sampled: int = 0
    detail: dict[str, float] = field(default_factory=dict)


class Tokenizer(Protocol):
    """What we use of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
    def apply_chat_template(self, conversation: list[dict[str, str]], **options: object) -> object: ...
    def get_vocab(self) -> dict[str, int]: ...


class Engine(Protocol):
    """One engine. `weights` is None until the first announced weights are loaded."""

    @property
    def weights(self) -> WeightVersion | None: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

    async def start(self) -> None:
        """Load the model. Returns when the engine can sample."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, heard: Heard | None = None) -> Completion:
        """Sample one response. Requests in flight go on across `load`, each token under its own version.

        `heard` follows the response as it grows; what it was told last need not be all of it.
        """

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The log-prob (natural log) of each of the `T` response tokens after all before it, under the present weights.

        They are those of temperature 1, whatever a response was sampled at.
        """

    async def load(self, directory: str, weights: WeightVersion) -> None:
        """Adopt complete, verified weights in Hugging Face layout, pausing requests in flight meanwhile.

        Raises:
            WeightsUnusable: this engine cannot take them. It goes on with those that it has.
            EngineDied: it has failed half way.
        """

    def load_now(self) -> EngineLoad: ...

    async def stop(self) -> None: ...


class EngineDied(RuntimeError):
    """The engine cannot sample any more. The process that holds it has to be started anew."""
