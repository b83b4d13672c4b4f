"""A response in pieces, as server-sent events, while it is sampled.

With tools, a response is told whole at its end: what begins like a call may not become one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.inference.engine import Heard
from services.inference.openai.answers import (
    DONE,
    Body,
    chat_logprobs,
    envelope,
    event,
    finish_of,
    message_of,
    text_logprobs,
    token_ids_of,
    usage_of,
    visible,
)
from services.inference.openai.calls import Call
from services.inference.openai.requests import ChatRequest, TextRequest
from services.inference.openai.served import Prompt, Served
from services.inference.openai.tool_calls import Parsed

_Piece = tuple[int, list[int], list[float], str]
Refused = Callable[[Exception], Body]


@dataclass
class _Told:
    """What a client has been told of one choice."""

    characters: int = 0
    tokens: int = 0


@dataclass
class Stream:
    """One streamed response. `refused` puts a failure in the middle of it into words; `calls` are there at its end."""

    served: Served
    request: ChatRequest | TextRequest
    prompts: Sequence[Prompt]
    request_id: str
    refused: Refused
    calls: Sequence[Call] = ()
    _told: dict[int, _Told] = field(default_factory=dict)

    async def events(self) -> AsyncIterator[str]:
        """The events, up to `[DONE]`. Sampling ends when nobody listens any more."""
        pieces: asyncio.Queue[_Piece | None] = asyncio.Queue()

        def hear(choice: int) -> Heard:
            return lambda ids, logprobs, text: pieces.put_nowait((choice, list(ids), list(logprobs), text))

        answering = asyncio.create_task(self.served.answer(self.request, self.prompts, self.request_id, hear))
        answering.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            for body in self._opening():
                yield event(body)
            while (piece := await pieces.get()) is not None:
                for body in self._grown(*piece):
                    yield event(body)
            self.calls = await answering
            for body in self._closing(self.calls):
                yield event(body)
            yield DONE
        except Exception as error:  # noqa: BLE001 - the boundary: the status is sent, so the failure becomes an event
            yield event(self.refused(error))
        finally:
            answering.cancel()

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.request, ChatRequest)

    @property
    def _holds_back(self) -> bool:
        return isinstance(self.request, ChatRequest) and bool(self.request.usable_tools)

    def _opening(self) -> list[Body]:
        if not self._is_chat:
            return []
        told: Body = {"prompt_token_ids": list(self.prompts[0].ids)} if self.request.return_token_ids else {}
        first = {"role": "assistant", "content": ""}
        return [{**self._chunk(choice, delta=first), **told} for choice in range(self.request.n)]

    def _grown(self, choice: int, ids: list[int], logprobs: list[float], text: str) -> list[Body]:
        if self._holds_back:
            return []
        stops = self.served.sampling(self.request, self._prompt(choice), 0).stop
        return self._next(choice, ids, logprobs, visible(text, stops, is_whole=False))

    def _next(self, choice: int, ids: Sequence[int], logprobs: Sequence[float], seen: str) -> list[Body]:
        """What a client has not been told yet."""
        told = self._told.setdefault(choice, _Told())
        text, tokens = seen[told.characters :], ids[told.tokens :]
        if not text and not (tokens and self._wants_logprobs):
            return []
        shown = self._logprobs(tokens, logprobs[told.tokens :])
        told.characters, told.tokens = max(told.characters, len(seen)), len(ids)
        return [self._chunk(choice, delta={"content": text}, text=text, logprobs=shown)]

    def _closing(self, calls: Sequence[Call]) -> list[Body]:
        bodies = [body for call in calls for body in self._last(call)]
        if self.request.wants_usage:
            usage = usage_of([prompt.ids for prompt in self.prompts], calls)
            bodies.append({**self._envelope(), "choices": [], "usage": usage})
        return bodies

    def _last(self, call: Call) -> list[Body]:
        completion = call.completion
        stops = self.served.sampling(self.request, self._prompt(call.choice), 0).stop
        text = visible(completion.text, stops, is_whole=True)
        parsed = self.served.parsed(text, self.request) if isinstance(self.request, ChatRequest) else Parsed(text)
        ids, logprobs = completion.token_ids.tolist(), completion.logprobs.tolist()
        rest = self._next(call.choice, ids, logprobs, parsed.content or "")
        if parsed.calls:
            calls = message_of(parsed, self.request_id, call.choice)["tool_calls"]
            numbered = [{"index": place, **each} for place, each in enumerate(calls)]
            rest.append(self._chunk(call.choice, delta={"tool_calls": numbered}))
        ending = self._chunk(call.choice, delta={}, finish=finish_of(call, parsed))
        ending["choices"][0] |= token_ids_of(call, self.request.return_token_ids)
        return [*rest, ending]

    @property
    def _wants_logprobs(self) -> bool:
        wanted: Any = self.request.logprobs
        return wanted is not None and wanted is not False

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> Body | None:
        if not self._wants_logprobs:
            return None
        shape = chat_logprobs if self._is_chat else text_logprobs
        return shape(self.served.engine.tokenizer, ids, logprobs)

    def _prompt(self, choice: int) -> Prompt:
        return self.prompts[choice // self.request.n]

    def _chunk(
        self, choice: int, *, delta: Body, text: str = "", logprobs: Body | None = None, finish: str | None = None
    ) -> Body:
        said: Body = {"delta": delta} if self._is_chat else {"text": text}
        choices = [{"index": choice, **said, "logprobs": logprobs, "finish_reason": finish}]
        return {**self._envelope(), "choices": choices}

    def _envelope(self) -> Body:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return envelope(kind, self.request_id, self.served.name, self.served.fingerprint)
