"""Models beside the policy: judges, reward models, teachers. They are never trained, and never change within a run."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.inference.chat_layout import Messages, laid_out
from services.inference.engine import Engine, Sampling


class AuxiliaryFailed(RuntimeError):
    """An auxiliary model that did not answer; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"auxiliary model {name!r}: {reason}")


def no_reward_model(name: str) -> AuxiliaryFailed:
    """What a model that generates text says when it is asked for a score."""
    return AuxiliaryFailed(
        name, "it generates text and scores nothing: name a sequence classifier, or set runner: pooling where it is one"
    )


class AuxiliaryModel(Protocol):
    """A model that workflows may ask. Many may ask at once."""

    @property
    def name(self) -> str: ...

    @property
    def is_classifier(self) -> bool:
        """Whether it scores conversations, as a reward model does, rather than answering them."""

    async def chat(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        """The answer to a conversation. What is None is as the model is configured.

        Raises:
            AuxiliaryFailed: there is no answer, after all tries, or the model is a classifier.
        """

    async def score(self, messages: Messages) -> float:
        """The raw score of a conversation, its last message included: what a reward model's one label puts out.

        Raises:
            AuxiliaryFailed: the model is no reward model, or the conversation is too long for it.
        """

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The log-prob (natural log, temperature 1) of each response token after all before it.

        The token ids have to mean the same to this model as to whoever made them.

        Raises:
            AuxiliaryFailed: a server that does not give the log-probs of a prompt.
        """

    async def start(self) -> None:
        """Returns when the model can be asked. One that was not started is started by the first who asks."""

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class Defaults:
    """How a model is asked where a workflow does not say. Lengths are in tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 2048
    max_model_len: int | None = None
    repetition_penalty: float = 1.0
    chat_template: str | None = None
    enable_thinking: bool | None = None


class EngineModel:
    """An auxiliary model on an engine of this process."""

    def __init__(self, name: str, engine: Engine, defaults: Defaults) -> None:
        self._name = name
        self._engine = engine
        self._defaults = defaults
        self._starting = asyncio.Lock()
        self._is_started = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def is_classifier(self) -> bool:
        return False

    @property
    def defaults(self) -> Defaults:
        return self._defaults

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

    async def chat(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        engine = await self._started()
        defaults = self._defaults
        prompt = laid_out(
            engine.tokenizer,
            messages,
            chat_template=defaults.chat_template,
            enable_thinking=defaults.enable_thinking,
        )
        prompt_ids = engine.tokenizer.encode(prompt, add_special_tokens=False)
        sampling = Sampling(
            temperature=defaults.temperature if temperature is None else temperature,
            top_p=defaults.top_p if top_p is None else top_p,
            top_k=defaults.top_k,
            max_tokens=self._room(len(prompt_ids), max_tokens or defaults.max_tokens),
            repetition_penalty=defaults.repetition_penalty,
        )
        return (await engine.sample(prompt_ids, sampling)).text

    async def score(self, messages: Messages) -> float:
        raise no_reward_model(self._name)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        tokens = len(prompt_ids) + len(response_ids)
        self._room(tokens, 1)
        engine = await self._started()
        return await engine.score(prompt_ids, response_ids)

    def _room(self, prompt_tokens: int, wanted: int) -> int:
        """Tokens that may follow a prompt."""
        limit = self._defaults.max_model_len
        if limit is None:
            return wanted
        if prompt_tokens >= limit:
            raise AuxiliaryFailed(
                self._name, f"a prompt of {prompt_tokens} tokens, where max_model_len={limit} of this model: raise it"
            )
        return min(wanted, limit - prompt_tokens)

    async def _started(self) -> Engine:
        if not self._is_started:
            await self.start()
        return self._engine


class Auxiliaries(Mapping[str, AuxiliaryModel]):
    """The auxiliary models of a run by their names, in the order of the configuration."""

    def __init__(self, models: Sequence[AuxiliaryModel] = ()) -> None:
        self._models = {model.name: model for model in models}

    def __getitem__(self, name: str) -> AuxiliaryModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    async def start(self) -> None:
        """One after the other: engines measure the memory that others leave."""
        for model in self._models.values():
            await model.start()

    async def stop(self) -> None:
        await asyncio.gather(*(model.stop() for model in self._models.values()))
