"""An auxiliary model behind an OpenAI-compatible address."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from services.inference.auxiliary import AuxiliaryFailed, Defaults, no_reward_model
from services.inference.chat_layout import Messages
from services.inference.config import ExternalModelConfig

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RETRIES = 5
TIMEOUT_S = 600.0
_LONGEST_ERROR = 500


class ExternalModel:
    """Asked over HTTP. Overload and broken connections are tried again, `RETRIES` times with growing pauses."""

    def __init__(
        self,
        name: str,
        *,
        model_name: str,
        base_url: str,
        api_key: str,
        defaults: Defaults,
        retries: int = RETRIES,
        is_classifier: bool = False,
    ) -> None:
        self._name = name
        self._model_name = model_name
        self._base_url = base_url
        self._api_key = api_key
        self._defaults = defaults
        self._retries = retries
        self._is_classifier = is_classifier
        self._client: AsyncOpenAI | None = None

    @classmethod
    def configured(
        cls, config: ExternalModelConfig, defaults: Defaults, name: str | None = None, is_classifier: bool = False
    ) -> "ExternalModel":
        """The model that `config` names; address and key come from the environment variables that it names.

        Raises:
            AuxiliaryFailed: the name of the model, or the address, is missing.
        """
        known_as = name or config.model_name or "external"
        if not config.model_name:
            raise AuxiliaryFailed(known_as, "external_model_config.model_name is missing")
        base_url = os.environ.get(config.base_url_env, "")
        if not base_url:
            raise AuxiliaryFailed(
                known_as, f"the environment variable {config.base_url_env} is not set: set it to the server's address"
            )
        api_key = os.environ.get(config.api_key_env) or "EMPTY"
        return cls(
            known_as,
            model_name=config.model_name,
            base_url=base_url,
            api_key=api_key,
            defaults=defaults,
            is_classifier=is_classifier,
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_classifier(self) -> bool:
        return self._is_classifier

    async def start(self) -> None:
        self._opened()

    async def stop(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def chat(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        from openai import OpenAIError

        conversation: Any = [dict(message) for message in messages]
        try:
            completion = await self._opened().chat.completions.create(
                model=self._model_name,
                messages=conversation,
                temperature=self._defaults.temperature if temperature is None else temperature,
                top_p=self._defaults.top_p if top_p is None else top_p,
                max_tokens=max_tokens or self._defaults.max_tokens,
            )
        except OpenAIError as error:
            raise self._failed(error) from error
        content = completion.choices[0].message.content if completion.choices else None
        if content is None:
            raise AuxiliaryFailed(self._name, f"{self._base_url} answered without a text")
        return content

    async def score(self, messages: Messages) -> float:
        """By vLLM's endpoint `/classify`, which lays the conversation out by the model's chat template."""
        if not self._is_classifier:
            raise no_reward_model(self._name)
        from openai import OpenAIError

        address = f"{self._base_url.rstrip('/').removesuffix('/v1')}/classify"
        asked = {
            "model": self._model_name,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": False,
            "use_activation": False,
        }
        try:
            answer: Any = await self._opened().post(address, body=asked, cast_to=object)
        except OpenAIError as error:
            raise self._failed(error) from error
        return self._label_of(answer)

    def _label_of(self, answer: Any) -> float:
        try:
            (given,) = answer["data"]
            (score,) = given["probs"]
        except (KeyError, TypeError, ValueError):
            told = f"{self._base_url} did not answer /classify with one score: serve a classifier of one label by vLLM"
            raise AuxiliaryFailed(self._name, told) from None
        return float(score)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """By `prompt_logprobs` of vLLM's completions endpoint, which takes token ids."""
        from openai import OpenAIError

        tokens = [*prompt_ids, *response_ids]
        try:
            completion = await self._opened().completions.create(
                model=self._model_name,
                prompt=tokens,
                max_tokens=1,
                temperature=1.0,
                extra_body={"prompt_logprobs": 0},
            )
        except OpenAIError as error:
            raise self._failed(error) from error
        given = getattr(completion.choices[0], "prompt_logprobs", None) if completion.choices else None
        if not isinstance(given, list) or len(given) != len(tokens):
            raise AuxiliaryFailed(
                self._name,
                f"{self._base_url} does not give the log-probs of a prompt, which a teacher has to: serve the model "
                "with vLLM, or name it by model_path",
            )
        return self._logprobs_of(given, tokens, len(prompt_ids))

    def _logprobs_of(self, given: list[Any], tokens: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        found: list[float] = []
        for place in range(start, len(tokens)):
            candidates: Mapping[str, Any] = given[place] or {}
            if str(tokens[place]) not in candidates:
                raise AuxiliaryFailed(self._name, f"{self._base_url} gave no log-prob for token {tokens[place]}")
            found.append(float(candidates[str(tokens[place])]["logprob"]))
        return np.asarray(found, dtype=np.float32)

    def _opened(self) -> "AsyncOpenAI":
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                base_url=self._base_url, api_key=self._api_key, max_retries=self._retries, timeout=TIMEOUT_S
            )
        return self._client

    def _failed(self, error: Exception) -> AuxiliaryFailed:
        return AuxiliaryFailed(self._name, f"{self._base_url}: {type(error).__name__}: {str(error)[:_LONGEST_ERROR]}")
