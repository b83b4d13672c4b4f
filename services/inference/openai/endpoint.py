"""The routes: one model for everybody under `/v1`, and others under `/sessions/<key>/v1` for those who hold the key."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from services.inference.engine import EngineDied
from services.inference.openai.answers import Body, usage_of
from services.inference.openai.bodies import chat_body, text_body
from services.inference.openai.calls import Call
from services.inference.openai.errors import ApiError, away, invalid
from services.inference.openai.requests import ChatRequest, TextRequest
from services.inference.openai.served import Prompt, Served, new_id
from services.inference.openai.streaming import Stream

log = structlog.get_logger(__name__)

OPEN = "EMPTY"
"""The API key that lets everybody in."""

R = TypeVar("R", bound=BaseModel)


@dataclass
class Counts:
    """What an endpoint has done since it began."""

    requests: int = 0
    refused: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Endpoint:
    """An application for any number of models. `died` is set where an engine has, `idle` while nothing is asked."""

    def __init__(self, api_key: str = OPEN, public: Served | None = None) -> None:
        self.api_key = api_key
        self.public = public
        self.counts = Counts()
        self.died = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.is_closing = False
        self.also_counted: Callable[[], Awaitable[dict[str, Any]]] | None = None
        self._sessions: dict[str, Served] = {}
        self.app = self._application()

    def open(self, served: Served, key: str | None = None) -> str:
        """The key of a session of its own: one that nobody can guess, or the one that is given."""
        key = key or secrets.token_urlsafe(16)
        self._sessions[key] = served
        return key

    def close(self, key: str) -> None:
        """Forget a session. Requests in flight go on."""
        self._sessions.pop(key, None)

    def _application(self) -> FastAPI:
        app = FastAPI(title="Trinity-RFT", docs_url=None, redoc_url=None, openapi_url=None)
        router = APIRouter(dependencies=[Depends(self.authorized)])
        for prefix in ("", "/sessions/{key}"):
            router.add_api_route(f"{prefix}/v1/models", self._models, methods=["GET"], response_model=None)
            router.add_api_route(f"{prefix}/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
            router.add_api_route(f"{prefix}/v1/completions", self._complete, methods=["POST"], response_model=None)
        router.add_api_route("/metrics", self._metrics, methods=["GET"], response_model=None)
        app.include_router(router)
        app.add_api_route("/health", self._health, methods=["GET"], response_model=None)
        for kind in (ApiError, EngineDied, HTTPException, Exception):
            app.add_exception_handler(kind, self._refusal)
        return app

    async def authorized(self, request: Request) -> None:
        """Raises `ApiError` for a request without the key."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self.api_key not in ("", OPEN) and not secrets.compare_digest(given.encode(), self.api_key.encode()):
            said = "a wrong API key, or none: send the one of explorer.rollout_model.api_key as `Authorization: Bearer`"
            raise ApiError(401, said, kind="authentication_error", code="invalid_api_key")

    async def _models(self, request: Request) -> Response:
        served = self._served(request)
        model = {"id": served.name, "object": "model", "created": 0, "owned_by": "trinity"}
        model["max_model_len"] = served.max_model_len
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self) -> Response:
        """200 where requests are answered."""
        if self.died.is_set() or self.is_closing:
            raise away("the engine has died" if self.died.is_set() else "the service is leaving")
        if self.public is not None:
            self.public.assert_ready()
        return JSONResponse({"status": "ok"})

    async def _metrics(self) -> Response:
        weights = self.public.engine.weights if self.public else None
        more = await self.also_counted() if self.also_counted else {}
        return JSONResponse({**asdict(self.counts), "model_version": weights.version if weights else None, **more})

    async def _chat(self, request: Request) -> Response:
        asked, served = await body_of(request, ChatRequest), self._served(request)
        _assert_possible(asked)
        prompt = served.chat_prompt(asked)
        return await self._answered(served, asked, [prompt], new_id("chatcmpl"))

    async def _complete(self, request: Request) -> Response:
        asked, served = await body_of(request, TextRequest), self._served(request)
        if asked.echo or asked.suffix or (asked.stream and asked.scores_prompt):
            said = "echo, suffix, and prompt_logprobs in a stream are not available: leave them out"
            raise ApiError(400, said, param="echo")
        return await self._answered(served, asked, served.text_prompts(asked), new_id("cmpl"))

    async def _answered(
        self, served: Served, asked: ChatRequest | TextRequest, prompts: list[Prompt], request_id: str
    ) -> Response:
        served.assert_ready()
        if asked.stream:
            stream = Stream(served, asked, prompts, request_id, self._failed)
            events = self._counted_events(stream)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._begin()
        try:
            calls = await served.answer(asked, prompts, request_id)
            self._count_tokens(prompts, calls)
            if isinstance(asked, ChatRequest):
                return JSONResponse(chat_body(served, asked, prompts[0], calls, request_id))
            scores = {prompt.ids: await served.scored(prompt) for prompt in prompts} if asked.scores_prompt else {}
            return JSONResponse(text_body(served, asked, prompts, calls, request_id, scores))
        finally:
            self._end()

    async def _counted_events(self, stream: Stream) -> Any:
        self._begin()
        events = stream.events()
        try:
            async for each in events:
                yield each
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # an async generator
            self._count_tokens(stream.prompts, stream.calls)
            self._end()

    def _begin(self) -> None:
        self.counts.requests += 1
        self.counts.in_flight += 1
        self.idle.clear()

    def _end(self) -> None:
        self.counts.in_flight -= 1
        if self.counts.in_flight == 0:
            self.idle.set()

    def _count_tokens(self, prompts: Sequence[Prompt], calls: Sequence[Call]) -> None:
        usage = usage_of([prompt.ids for prompt in prompts], calls)
        self.counts.prompt_tokens += usage["prompt_tokens"]
        self.counts.completion_tokens += usage["completion_tokens"]

    def _served(self, request: Request) -> Served:
        if self.is_closing:
            raise away("the service is leaving: ask another one")
        key = request.path_params.get("key")
        served = self.public if key is None else self._sessions.get(key)
        if served is None:
            what = "this address serves sessions alone" if key is None else "this session is over, or never was"
            raise ApiError(404, f"{what}: take the address that you were given", code="model_not_found")
        return served

    async def _refusal(self, request: Request, error: Exception) -> Response:
        self.counts.refused += 1
        said = self._refused(error)
        return JSONResponse(said.body(), status_code=said.status)

    def _failed(self, error: Exception) -> Body:
        self.counts.refused += 1
        return self._refused(error).body()

    def _refused(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, HTTPException):
            return ApiError(error.status_code, str(error.detail))
        if isinstance(error, EngineDied):
            self.died.set()
            return away(f"the engine has died: {error}")
        log.error("request_failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        return ApiError(500, f"{type(error).__name__}: {error}", kind="server_error")


async def body_of(request: Request, kind: type[R]) -> R:
    """The body of a request, checked.

    Raises:
        ApiError: it is no JSON, or does not fit.
    """
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise invalid(error) from error


def _assert_possible(asked: ChatRequest) -> None:
    """Raises `ApiError` for what would be passed over otherwise, though the answer depends on it."""
    if asked.top_logprobs:
        said = f"top_logprobs={asked.top_logprobs}: only the sampled token's log-prob is known; leave it out"
        raise ApiError(400, said, param="top_logprobs")
    if (asked.response_format or {}).get("type", "text") != "text":
        said = "response_format: answers are not held to a format here; leave it out, and ask for it in the prompt"
        raise ApiError(400, said, param="response_format")
