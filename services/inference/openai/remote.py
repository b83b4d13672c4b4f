"""An engine of another process, by the routes `/engine/sample` and `/engine/score` beside its endpoint."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from schemas.weights import WeightVersion
from services.inference.engine import Completion, Engine, EngineDied, EngineLoad, Heard, Sampling, Tokenizer
from services.inference.openai.endpoint import Endpoint, body_of


class _Sample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_ids: list[int]
    sampling: Sampling


class _Score(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_ids: list[int]
    response_ids: list[int]


def lend(endpoint: Endpoint, engine: Engine) -> None:
    """Let other processes sample on `engine`, by `RemoteEngine`."""

    async def sample(request: Request) -> Response:
        asked = await body_of(request, _Sample)
        completion = await engine.sample(asked.prompt_ids, asked.sampling)
        return JSONResponse(
            {
                "token_ids": completion.token_ids.tolist(),
                "logprobs": completion.logprobs.tolist(),
                "token_versions": completion.token_versions.tolist(),
                "text": completion.text,
                "is_truncated": completion.is_truncated,
            }
        )

    async def score(request: Request) -> Response:
        asked = await body_of(request, _Score)
        return JSONResponse({"logprobs": (await engine.score(asked.prompt_ids, asked.response_ids)).tolist()})

    router = APIRouter(prefix="/engine", dependencies=[Depends(endpoint.authorized)])
    router.add_api_route("/sample", sample, methods=["POST"], response_model=None)
    router.add_api_route("/score", score, methods=["POST"], response_model=None)
    endpoint.app.include_router(router)


class RemoteEngine:
    """`services.inference.engine.Engine` on the engine that another process lends. It keeps the weights that it has.

    `tokenizer` is called once, when the engine is started.
    """

    def __init__(self, url: str, tokenizer: Callable[[], Tokenizer], api_key: str = "EMPTY") -> None:
        self._make_tokenizer = tokenizer
        self._tokenizer: Tokenizer | None = None
        headers = {"Authorization": f"Bearer {api_key}"}
        self._client = httpx.AsyncClient(base_url=f"{url}/engine", headers=headers, timeout=None)
        self._requests = 0
        self._tokens_sampled = 0

    @property
    def weights(self) -> WeightVersion | None:
        return WeightVersion()

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RuntimeError("the engine has not been started")
        return self._tokenizer

    async def start(self) -> None:
        self._tokenizer = await asyncio.to_thread(self._make_tokenizer)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, heard: Heard | None = None) -> Completion:
        """The whole response at once, of which `heard` is told at its end."""
        self._requests += 1
        try:
            said = await self._asked("sample", _Sample(prompt_ids=list(prompt_ids), sampling=sampling))
        finally:
            self._requests -= 1
        completion = Completion(
            token_ids=np.asarray(said["token_ids"], dtype=np.int32),
            logprobs=np.asarray(said["logprobs"], dtype=np.float32),
            token_versions=np.asarray(said["token_versions"], dtype=np.int32),
            text=said["text"],
            is_truncated=said["is_truncated"],
        )
        self._tokens_sampled += len(completion.token_ids)
        if heard is not None:
            heard(said["token_ids"], said["logprobs"], completion.text)
        return completion

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        asked = _Score(prompt_ids=list(prompt_ids), response_ids=list(response_ids))
        return np.asarray((await self._asked("score", asked))["logprobs"], dtype=np.float32)

    async def load(self, directory: str, weights: WeightVersion) -> None:
        raise RuntimeError("the weights of a lent engine are those of the process that lends it")

    def load_now(self) -> EngineLoad:
        return EngineLoad(requests=self._requests, tokens_sampled=self._tokens_sampled)

    async def stop(self) -> None:
        await self._client.aclose()

    async def _asked(self, route: str, body: BaseModel) -> Any:
        try:
            answer = await self._client.post(f"/{route}", content=body.model_dump_json())
        except httpx.TransportError as error:
            said = f"{type(error).__name__}: {error}"
            raise EngineDied(f"the engine at {self._client.base_url} does not answer: {said}") from error
        if answer.status_code == 503:
            raise EngineDied(answer.json()["error"]["message"])
        if answer.is_error:
            raise RuntimeError(f"the engine at {self._client.base_url}: {answer.status_code}: {answer.text[:500]}")
        return answer.json()
