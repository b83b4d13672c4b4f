"""Reward models: sequence classifiers with one label, whose raw output for a conversation is its score."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.inference.auxiliary import AuxiliaryFailed, Defaults
from services.inference.chat_layout import Messages
from services.inference.engine import Tokenizer


class Classifier(Protocol):
    """An engine that reads a text once and says one number for each label."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def start(self) -> None:
        """Load the model. Returns when the engine can be asked."""

    async def logits(self, token_ids: Sequence[int]) -> list[float]:
        """The classification head's output at the last token, without an activation."""

    async def stop(self) -> None: ...


class ClassifierModel:
    """`services.inference.auxiliary.AuxiliaryModel` that scores conversations, and says nothing."""

    is_classifier = True

    def __init__(self, name: str, engine: Classifier, defaults: Defaults) -> None:
        self._name = name
        self._engine = engine
        self._defaults = defaults
        self._starting = asyncio.Lock()
        self._is_started = False

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        async with self._starting:
            if not self._is_started:
                await self._engine.start()
                self._is_started = True

    async def stop(self) -> None:
        async with self._starting:
            if self._is_started:
                self._is_started = False
                await self._engine.stop()

    async def score(self, messages: Messages) -> float:
        """The conversation is laid out whole by the model's own chat template: its last message is not continued."""
        if not self._is_started:
            await self.start()
        tokenizer, defaults = self._engine.tokenizer, self._defaults
        chosen = {} if defaults.chat_template is None else {"chat_template": defaults.chat_template}
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=False, **chosen
        )
        token_ids = tokenizer.encode(str(text), add_special_tokens=False)
        limit = defaults.max_model_len
        if limit is not None and len(token_ids) > limit:
            told = f"a conversation of {len(token_ids)} tokens, where max_model_len={limit} of this model: raise it"
            raise AuxiliaryFailed(self._name, told)
        logits = await self._engine.logits(token_ids)
        if len(logits) != 1:
            told = f"it has {len(logits)} labels, and a reward model has one: name a classifier with num_labels 1"
            raise AuxiliaryFailed(self._name, told)
        return logits[0]

    async def chat(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        raise self._says_nothing()

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        raise self._says_nothing()

    def _says_nothing(self) -> AuxiliaryFailed:
        return AuxiliaryFailed(self._name, "it is a classifier, which scores conversations and says nothing: ask score")
