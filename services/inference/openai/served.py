"""An engine as clients meet it: what a request asks for becomes sampling arguments, and what is sampled is kept."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from services.inference.engine import Engine, EngineDied, Heard, Sampling
from services.inference.openai.calls import Call, Memory
from services.inference.openai.conversation import laid_out
from services.inference.openai.errors import ApiError, away, too_long
from services.inference.openai.requests import ChatRequest, TextRequest
from services.inference.openai.tool_calls import PARSERS, Parsed

Keep = Callable[[Sequence[Call]], Awaitable[None]]
"""Told the calls of a response before the client sees the end of it. What it raises is what the client gets."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as the ids that the engine is given."""

    text: str
    ids: tuple[int, ...]


@dataclass
class Served:
    """A model under a name.

    `defaults` hold where a request says nothing. Where `is_sampling_fixed`, requests decide the stops, the seed and a
    smaller number of tokens, and nothing else: what is learned from has to be sampled as the policy is. `max_model_len`
    counts tokens of prompt and response; None is no limit. `obstacle` says why the model cannot answer now.
    """

    name: str
    engine: Engine
    defaults: Sampling = field(default_factory=lambda: Sampling(max_tokens=2048))
    max_model_len: int | None = None
    chat_template: str | None = None
    enable_thinking: bool | None = None
    tool_call_parser: str | None = None
    is_sampling_fixed: bool = False
    keep: Keep | None = None
    obstacle: Callable[[], str | None] = lambda: None
    _memory: Memory | None = None

    @property
    def fingerprint(self) -> str:
        """The present weights."""
        weights = self.engine.weights
        return f"{weights.incarnation}.{weights.version}" if weights else "0.0"

    def assert_ready(self) -> None:
        """Raises `ApiError` where the model cannot answer now."""
        reason = self.obstacle()
        if reason is not None:
            raise away(reason)

    def chat_prompt(self, request: ChatRequest) -> Prompt:
        """The prompt of a conversation.

        Raises:
            ApiError: it cannot be laid out, or leaves no room for a response.
        """
        text = laid_out(
            self.engine.tokenizer,
            request,
            chat_template=self.chat_template,
            enable_thinking=self.enable_thinking,
        )
        return self._fitting(Prompt(text, self._remembered().encoded(text)))

    def text_prompts(self, request: TextRequest) -> list[Prompt]:
        """The prompts of a text request, in its order. Errors as of `chat_prompt`."""
        tokenizer = self.engine.tokenizer
        return [
            self._fitting(
                Prompt(given, tuple(tokenizer.encode(given)))
                if isinstance(given, str)
                else Prompt(tokenizer.decode(given), tuple(given))
            )
            for given in request.prompts
        ]

    def parsed(self, text: str, request: ChatRequest) -> Parsed:
        """The tool calls of a response, where the request brought tools."""
        return PARSERS[self.tool_call_parser](text) if request.usable_tools else Parsed(text)

    def sampling(self, request: ChatRequest | TextRequest, prompt: Prompt, choice: int) -> Sampling:
        """The arguments of one choice: with a seed, each choice has its own."""
        defaults, seed = self.defaults, request.seed
        wanted = getattr(request, "max_completion_tokens", None) or request.max_tokens
        sizes = [defaults.max_tokens if wanted is None else wanted]
        if self.is_sampling_fixed:
            sizes.append(defaults.max_tokens)
        if self.max_model_len is not None:
            sizes.append(self.max_model_len - len(prompt.ids))
        seed = defaults.seed if seed is None else seed
        chosen = replace(
            defaults,
            max_tokens=min(sizes),
            stop=(*defaults.stop, *request.stops),
            seed=None if seed is None else seed + choice,
        )
        if self.is_sampling_fixed:
            return replace(chosen, min_tokens=min(defaults.min_tokens, min(sizes)))
        names = ("temperature", "top_p", "top_k", "min_tokens", "repetition_penalty", "ignore_eos")
        given = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
        return replace(chosen, **given)

    async def answer(
        self,
        request: ChatRequest | TextRequest,
        prompts: Sequence[Prompt],
        request_id: str,
        heard: Callable[[int], Heard] | None = None,
    ) -> list[Call]:
        """All choices of all prompts, `n` to each, kept.

        Raises:
            EngineDied: the engine cannot sample any more.
        """
        numbered = [
            (place * request.n + choice, prompt) for place, prompt in enumerate(prompts) for choice in range(request.n)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._call(request, prompt, request_id, number, heard))
                    for number, prompt in numbered
                ]
        except BaseExceptionGroup as failures:
            raise _worst(failures) from None
        calls = [task.result() for task in tasks]
        sampled = [call for call in calls if len(call.completion.token_ids)]
        if self.keep is not None and sampled:
            self._remembered().remember(sampled)
            await self.keep(sampled)
        return calls

    async def _call(
        self,
        request: ChatRequest | TextRequest,
        prompt: Prompt,
        request_id: str,
        choice: int,
        heard: Callable[[int], Heard] | None,
    ) -> Call:
        sampling = self.sampling(request, prompt, choice % request.n)
        completion = await self.engine.sample(prompt.ids, sampling, heard(choice) if heard else None)
        weights = self.engine.weights
        return Call(
            request_id,
            choice,
            prompt.ids,
            prompt.text,
            completion,
            temperature=sampling.temperature,
            incarnation=weights.incarnation if weights else 0,
        )

    async def scored(self, prompt: Prompt) -> list[float]:
        """The log-probs (temperature 1) of a prompt's tokens, from the second on."""
        scores = await self.engine.score(prompt.ids[:1], prompt.ids[1:])
        return [float(score) for score in scores]

    def _fitting(self, prompt: Prompt) -> Prompt:
        if not prompt.ids:
            raise ApiError(400, "the prompt has no tokens: say something", param="prompt")
        if self.max_model_len is not None and len(prompt.ids) >= self.max_model_len:
            raise too_long(len(prompt.ids), self.max_model_len)
        return prompt

    def _remembered(self) -> Memory:
        if self._memory is None:
            self._memory = Memory(self.engine.tokenizer)
        return self._memory


def new_id(kind: str) -> str:
    """An id that no other response has."""
    return f"{kind}-{uuid.uuid4().hex}"


def _worst(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several failures, that of the engine, else the first."""
    died = [failure for failure in failures.exceptions if isinstance(failure, EngineDied)]
    return died[0] if died else failures.exceptions[0]
