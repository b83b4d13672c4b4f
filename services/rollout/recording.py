"""Any agent framework as a workflow: it talks to the policy over HTTP, and what was sampled becomes experiences.

Calls of which one goes on where another ended are one experience: its tokens are those that the engine saw and sampled,
and what came from elsewhere between them is masked. A call that goes on from none of them begins one of its own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from schemas.experiences import Experience
from services.inference.engine import Completion, Engine
from services.inference.openai.calls import Call, begins_with
from services.rollout.errors import EmptyResponse

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from services.inference.openai.endpoint import Endpoint
    from services.inference.openai.server import WebServer
    from services.rollout.policy import Policy

MODEL_NAME = "policy"


def chains(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls as conversations, each in its order: a call goes on from the longest that its prompt begins with.

    Of two that go on from the same call, the second begins a conversation of its own.
    """
    found: list[list[Call]] = []
    for call in sorted(calls, key=lambda call: call.at):
        before = [chain for chain in found if _goes_on(call, chain[-1])]
        longest = max(before, key=lambda chain: len(chain[-1].ids), default=None)
        if longest is None:
            found.append([call])
        else:
            longest.append(call)
    return found


def _goes_on(call: Call, last: Call) -> bool:
    return call.temperature == last.temperature and begins_with(call.prompt_ids, last.ids)


class Spoken(Protocol):
    """A response with the prompt that it answers: a `Call`, or a `Sampled` of `services.rollout.policy`."""

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...
    @property
    def prompt_text(self) -> str: ...
    @property
    def completion(self) -> Completion: ...
    @property
    def temperature(self) -> float: ...
    @property
    def ids(self) -> tuple[int, ...]: ...


def experience_of(
    chain: Sequence[Spoken],
    position: int,
    reward: float,
    metrics: Mapping[str, float] | None = None,
    *,
    step: int = 0,
    is_masked: bool = False,
) -> Experience:
    """One experience of a chain: trained on are the tokens that were sampled, and none where `is_masked`.

    Tokens that came from elsewhere have log-prob 0 and the version of the token before them.
    """
    first, last = chain[0], chain[-1]
    tokens = np.asarray(last.ids, dtype=np.int32)
    start = len(first.prompt_ids)
    mask = np.zeros(len(tokens) - start, np.uint8)
    logprobs = np.zeros(len(tokens) - start, np.float32)
    versions = np.full(len(tokens) - start, -1, np.int32)
    for call in chain:
        place = slice(len(call.prompt_ids) - start, len(call.ids) - start)
        mask[place] = 0 if is_masked else 1
        logprobs[place] = call.completion.logprobs
        versions[place] = call.completion.token_versions
        versions[place.stop :] = versions[place.stop - 1]
    return Experience(
        position=position,
        tokens=tokens,
        prompt_length=start,
        action_mask=mask,
        logprobs=logprobs,
        token_versions=versions,
        reward=reward,
        metrics=dict(metrics or {}),
        prompt_text=first.prompt_text,
        response_text=last.prompt_text.removeprefix(first.prompt_text) + last.completion.text,
        is_truncated=last.completion.is_truncated,
        step=step,
        temperature=first.temperature,
    )


@dataclass
class Recording:
    """A session with the policy: whoever has `base_url` and `api_key` may talk to it until the session ends."""

    base_url: str
    api_key: str
    client: "AsyncOpenAI"
    model: str = MODEL_NAME
    _calls: list[Call] = field(default_factory=list)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All that was sampled so far, in the order in which it was done."""
        return tuple(self._calls)

    def experiences(
        self, position: int, reward: float, metrics: Mapping[str, float] | None = None, *, is_masked: bool = False
    ) -> tuple[Experience, ...]:
        """One experience a conversation, as steps from 0, all with the same reward.

        Raises:
            EmptyResponse: nothing was sampled.
        """
        if not self._calls:
            raise EmptyResponse("the agent has not asked the policy for anything: give it `base_url` and `api_key`")
        return tuple(
            experience_of(chain, position, reward, metrics, step=step, is_masked=is_masked)
            for step, chain in enumerate(chains(self._calls))
        )

    async def keep(self, calls: Sequence[Call]) -> None:
        self._calls.extend(calls)


@dataclass
class _Shared:
    """The endpoint of one engine, with the number of those who use it."""

    endpoint: "Endpoint"
    server: "WebServer"
    users: int = 0


_shared: "WeakKeyDictionary[Engine, _Shared]" = WeakKeyDictionary()
_starting: "WeakKeyDictionary[Engine, asyncio.Lock]" = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def shared(engine: Engine, endpoint: "Endpoint", server: "WebServer") -> AsyncIterator[None]:
    """Sessions of this engine are opened on an endpoint that is there already, while the block lasts."""
    _shared[engine] = _Shared(endpoint, server, users=1)
    try:
        yield
    finally:
        _shared.pop(engine, None)


@contextlib.asynccontextmanager
async def recording(policy: "Policy") -> AsyncIterator[Recording]:
    """A session in which every call samples as `policy` does, whatever temperature or top_p it asks for."""
    from openai import AsyncOpenAI

    from services.inference.openai.served import Served

    served = Served(
        MODEL_NAME,
        policy.engine,
        policy.sampling,
        max_model_len=policy.prompting.max_model_len,
        chat_template=policy.prompting.custom_chat_template,
        enable_thinking=policy.prompting.enable_thinking,
        is_sampling_fixed=True,
    )
    async with _endpoint(policy.engine) as (endpoint, server):
        key = endpoint.open(served)
        url, api_key = f"{server.url}/sessions/{key}/v1", endpoint.api_key
        client = AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0, timeout=None)
        session = Recording(url, api_key, client)
        served.keep = session.keep
        try:
            yield session
        finally:
            endpoint.close(key)
            await client.close()


@contextlib.asynccontextmanager
async def _endpoint(engine: Engine) -> AsyncIterator[tuple["Endpoint", "WebServer"]]:
    """The endpoint of an engine: started by who comes first, stopped by who leaves last."""
    lock = _starting.setdefault(engine, asyncio.Lock())
    async with lock:
        held = _shared.get(engine) or await _started()
        _shared[engine] = held
        held.users += 1
    try:
        yield held.endpoint, held.server
    finally:
        async with lock:
            held.users -= 1
            if held.users == 0:
                _shared.pop(engine, None)
                await held.server.stop()


async def _started() -> _Shared:
    from services.inference.openai.endpoint import Endpoint
    from services.inference.openai.server import WebServer

    endpoint = Endpoint()
    server = WebServer(endpoint.app)
    await server.start()
    return _Shared(endpoint, server)
