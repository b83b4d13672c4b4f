"""The policy as a workflow sees it: text or messages in, one sampled response out, ready to become an experience.

The tokens of a `Sampled` are those that the engine saw and sampled: text is never tokenized a second time.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from schemas.experiences import Experience
from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries, AuxiliaryModel
from services.inference.chat_layout import Messages, laid_out
from services.inference.engine import Completion, Engine, Sampling
from services.rollout.errors import AuxiliaryMissing, EmptyResponse, PromptTooLong

if TYPE_CHECKING:
    from services.rollout.recording import Recording


@dataclass(frozen=True)
class Prompting:
    """How prompts are made. What is None is left to the tokenizer; a length of None is no limit.

    `max_model_len` counts the tokens of prompt and response, of all turns together.
    """

    max_prompt_tokens: int | None = None
    max_model_len: int | None = None
    enable_prompt_truncation: bool = True
    custom_chat_template: str | None = None
    enable_thinking: bool | None = None


NO_LIMITS = Prompting()
NO_AUXILIARIES = Auxiliaries()


@dataclass(frozen=True)
class Sampled:
    """One response with the prompt it answers. A truncated prompt is there, but is not to be learned from."""

    prompt_ids: tuple[int, ...]
    prompt_text: str
    completion: Completion
    is_prompt_truncated: bool = False
    temperature: float = 1.0

    @property
    def text(self) -> str:
        return self.completion.text

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and response."""
        return (*self.prompt_ids, *self.completion.token_ids.tolist())

    def experience(
        self,
        position: int,
        reward: float,
        metrics: Mapping[str, float] | None = None,
        *,
        step: int = 0,
        state: str = "",
        step_reward: float | None = None,
        teacher_logprobs: npt.NDArray[np.float32] | None = None,
        is_masked: bool = False,
    ) -> Experience:
        """The experience of this response. Where `is_masked`, no token of it is trained on.

        `teacher_logprobs` are another model's for the tokens of the response; the rest is as in `Experience`. Of a
        truncated prompt it is a masked one with reward 0 and the metric `prompt_truncated`.
        """
        if self.is_prompt_truncated:
            reward, metrics, is_masked = 0.0, {"prompt_truncated": 1.0}, True
        completion = self.completion
        length = len(completion.token_ids)
        return Experience(
            position=position,
            tokens=np.concatenate([np.asarray(self.prompt_ids, dtype=np.int32), completion.token_ids]),
            prompt_length=len(self.prompt_ids),
            action_mask=np.zeros(length, np.uint8) if is_masked else np.ones(length, np.uint8),
            logprobs=completion.logprobs,
            token_versions=completion.token_versions,
            reward=reward,
            metrics=dict(metrics or {}),
            prompt_text=self.prompt_text,
            response_text=completion.text,
            is_truncated=completion.is_truncated,
            step=step,
            temperature=self.temperature,
            teacher_logprobs=_NONE if teacher_logprobs is None else teacher_logprobs,
            state=state,
            step_reward=step_reward,
        )


class Policy:
    """An engine together with the sampling arguments of one task, and the auxiliary models beside it, by name."""

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        prompting: Prompting = NO_LIMITS,
        auxiliary: Mapping[str, AuxiliaryModel] = NO_AUXILIARIES,
    ) -> None:
        self.engine = engine
        self.sampling = sampling
        self.prompting = prompting
        self.auxiliary = auxiliary

    @property
    def judge(self) -> AuxiliaryModel:
        """The first of the auxiliary models that answer.

        Raises:
            AuxiliaryMissing: there is none.
        """
        return self.auxiliary_named(None)

    def auxiliary_named(self, name: str | None) -> AuxiliaryModel:
        """The auxiliary model of that name; without one, the first that answers, as a reward model does not.

        Raises:
            AuxiliaryMissing: there is none.
        """
        return self._auxiliary(name, is_classifier=False)

    def reward_model(self, name: str | None = None) -> AuxiliaryModel:
        """The reward model of that name; the first of them without one.

        Raises:
            AuxiliaryMissing: there is none.
        """
        return self._auxiliary(name, is_classifier=True)

    def _auxiliary(self, name: str | None, *, is_classifier: bool) -> AuxiliaryModel:
        fit = (each for each, model in self.auxiliary.items() if model.is_classifier == is_classifier)
        chosen = next(fit, None) if name is None else name
        if chosen is None or chosen not in self.auxiliary:
            raise AuxiliaryMissing(name, self.auxiliary, "a reward model" if is_classifier else "an auxiliary model")
        return self.auxiliary[chosen]

    def at(self, position: int) -> Self:
        """The policy for one of several answers to a task: with a seed, each has its own, or all would be the same."""
        if self.sampling.seed is None:
            return self
        return self.with_sampling(seed=self.sampling.seed + position)

    def recording(self) -> "AbstractAsyncContextManager[Recording]":
        """A session in which an agent talks to the policy over HTTP; see `services.rollout.recording`."""
        from services.rollout.recording import recording

        return recording(self)

    def with_sampling(self, **changes: Any) -> Self:
        """The same policy with other sampling arguments (fields of `Sampling`)."""
        other = copy.copy(self)
        other.sampling = replace(self.sampling, **changes)
        return other

    async def complete(self, prompt: str) -> Sampled:
        """Continue plain text.

        Raises:
            PromptTooLong: the prompt is over the limit, and truncation is off.
            EmptyResponse: no token was sampled.
        """
        return await self._sample(prompt, self.engine.tokenizer.encode(prompt))

    async def chat(
        self,
        messages: Messages,
        *,
        chat_template: str | None = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> Sampled:
        """Answer a conversation, laid out by the chat template. A last message of the assistant is continued.

        `chat_template` and `enable_thinking` go before those of `prompting`. Errors as of `complete`.
        """
        prompt = self.laid_out(
            messages,
            chat_template=chat_template,
            enable_thinking=enable_thinking,
            add_generation_prompt=add_generation_prompt,
        )
        return await self._sample(prompt, self.engine.tokenizer.encode(prompt, add_special_tokens=False))

    def laid_out(
        self,
        messages: Messages,
        *,
        chat_template: str | None = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """A conversation as text, its special tokens included. Arguments as of `chat`."""
        return laid_out(
            self.engine.tokenizer,
            messages,
            chat_template=chat_template or self.prompting.custom_chat_template,
            enable_thinking=self.prompting.enable_thinking if enable_thinking is None else enable_thinking,
            add_generation_prompt=add_generation_prompt,
        )

    async def _sample(self, prompt: str, prompt_ids: Sequence[int]) -> Sampled:
        limit = self.prompting.max_prompt_tokens
        is_too_long = limit is not None and len(prompt_ids) > limit
        sampling = self.sampling
        if limit is not None and is_too_long:
            if not self.prompting.enable_prompt_truncation:
                raise PromptTooLong(len(prompt_ids), limit)
            prompt_ids = prompt_ids[len(prompt_ids) - limit :]
            prompt = self.engine.tokenizer.decode(prompt_ids)
            sampling = replace(sampling, max_tokens=1, min_tokens=0)  # masked: one true token keeps its shape
        if not prompt_ids:
            raise EmptyResponse("the prompt has no tokens, so nothing can be sampled")
        completion = await self.engine.sample(prompt_ids, sampling)
        if len(completion.token_ids) == 0:
            raise EmptyResponse(f"no token was sampled for a prompt of {len(prompt_ids)} tokens")
        return Sampled(tuple(prompt_ids), prompt, completion, is_too_long, sampling.temperature)


_NONE = np.zeros(0, dtype=np.float32)


def prompting_of(config: RunConfig) -> Prompting:
    """How the run's prompts are made."""
    return Prompting(
        max_prompt_tokens=config.max_prompt_tokens,
        max_model_len=config.max_model_len,
        enable_prompt_truncation=config.model.enable_prompt_truncation,
        custom_chat_template=config.model.custom_chat_template,
        enable_thinking=config.rollout_model.enable_thinking,
    )


def sampling_of(rollout_args: Mapping[str, Any]) -> Sampling:
    """Sampling arguments from those that a task carries; what is absent or None keeps the engine's default.

    Arguments that are no business of one request (`n`, `logprobs`) are left out.
    """
    known = {field.name for field in fields(Sampling)}
    chosen = {name: value for name, value in rollout_args.items() if name in known and value is not None}
    if "stop" in chosen:
        chosen["stop"] = tuple(chosen["stop"])
    return Sampling(**chosen)
