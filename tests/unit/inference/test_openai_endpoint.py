"""OpenAI's own client against the endpoint: what was sampled arrives as it was sampled, and refusals say what to do."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.inference.openai.calls import Call
from services.inference.openai.endpoint import Endpoint
from services.inference.openai.served import Served
from services.inference.openai.server import PortTaken, WebServer
from services.inference.openai.tool_calls import bare_json, hermes

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
PROMPT = "user: hello\nassistant: "
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@asynccontextmanager
async def serving(
    engine: FakeEngine, api_key: str = "EMPTY", **changes: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, list[Call]]]:
    """A client of a model that may sample six tokens, and what the endpoint has kept."""
    kept: list[Call] = []

    async def keep(calls: Any) -> None:
        kept.extend(calls)

    served = Served("tiny", engine, **{"defaults": Sampling(max_tokens=6), "max_model_len": 200, **changes})
    served.keep = keep
    endpoint = Endpoint(api_key, served)
    server = WebServer(endpoint.app)
    await server.start()
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0)
    try:
        yield client, kept
    finally:
        await client.close()
        await server.stop()


@pytest.fixture
def scripted() -> Callable[..., FakeEngine]:
    """An engine that says its lines, whatever it is asked."""
    return lambda *lines: FakeEngine(lines=lines)


async def test_a_chat_is_answered_with_the_very_tokens_that_the_engine_sampled() -> None:
    async with serving(FakeEngine()) as (client, kept):
        answer: Any = await client.chat.completions.create(
            model="tiny", messages=HELLO, logprobs=True, seed=7, extra_body={"return_token_ids": True}
        )
    expected = await FakeEngine().sample(list(PROMPT.encode()), Sampling(max_tokens=6, seed=7))
    (call,) = kept
    assert answer.choices[0].token_ids == expected.token_ids.tolist() == call.completion.token_ids.tolist()
    assert answer.prompt_token_ids == list(PROMPT.encode()) == list(call.prompt_ids)
    told = np.float32([token.logprob for token in answer.choices[0].logprobs.content])
    assert np.array_equal(told, expected.logprobs)
    assert answer.choices[0].message.content == expected.text
    assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("length", len(PROMPT) + 6)
    assert call.request_id == answer.id


async def test_each_choice_of_a_seed_is_another_and_the_same_again_on_the_next_day() -> None:
    async with serving(FakeEngine()) as (client, _):
        first = await client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=1)
        again = await client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=1)
    said = [choice.message.content for choice in first.choices]
    assert len(set(said)) == 3
    assert said == [choice.message.content for choice in again.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]


async def test_a_stream_says_the_same_as_the_whole_answer() -> None:
    async with serving(FakeEngine()) as (client, kept):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, n=2, seed=5)
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            n=2,
            seed=5,
            stream=True,
            logprobs=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    said = {0: "", 1: ""}
    tokens = {0: 0, 1: 0}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        said[choice.index] += choice.delta.content or ""
        tokens[choice.index] += len(choice.logprobs.content or ()) if choice.logprobs else 0
    assert said == {choice.index: choice.message.content for choice in whole.choices}
    assert tokens == {0: 6, 1: 6}
    assert len(chunks) > 6, "it came in pieces"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert len(kept) == 4


async def test_a_stop_ends_the_answer_and_is_not_told(scripted) -> None:
    async with serving(scripted("one END two", "one END two"), defaults=Sampling(max_tokens=40)) as (client, kept):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, stop="END")
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stop=["END"], stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert whole.choices[0].message.content == "one "
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(pieces) == "one "
    assert bytes(kept[0].completion.token_ids.tolist()).decode() == "one END", "the tokens are as they were sampled"


async def test_a_tool_call_is_told_as_one_whole_and_in_a_stream(scripted) -> None:
    said = 'Let me look.<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with serving(scripted(said), defaults=Sampling(max_tokens=150)) as (client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER])
        plain = await client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], tool_choice="none")
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], stream=True)
        deltas = [chunk.choices[0] async for chunk in stream]
    (call,) = whole.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})  # type: ignore[union-attr]
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Let me look.", "tool_calls")
    assert plain.choices[0].message.content == said
    (streamed,) = [call for choice in deltas for call in choice.delta.tool_calls or ()]
    assert streamed.function.name == "weather"  # type: ignore[union-attr]
    assert deltas[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("text", "names", "content"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b"}</tool_call>', ["a", "b"], None),
        ('<tool_call>{"name": "a", "arguments": {}', [], '<tool_call>{"name": "a", "arguments": {}'),
        ("no call", [], "no call"),
    ],
)
def test_tags_that_hold_no_call_are_text(text: str, names: list[str], content: str | None) -> None:
    parsed = hermes(text)
    assert ([call.name for call in parsed.calls], parsed.content) == (names, content)


def test_bare_json_is_a_call_only_where_it_is_all_there_is() -> None:
    assert bare_json('```json\n{"name": "f", "parameters": {"x": 1}}\n```').calls[0].arguments == '{"x": 1}'
    assert bare_json('Sure: {"name": "f", "parameters": {}}').calls == ()


async def test_texts_and_token_ids_are_completed() -> None:
    async with serving(FakeEngine()) as (client, kept):
        answer = await client.completions.create(model="tiny", prompt=[[65, 66], [67]], n=2, seed=3, logprobs=1)
    expected = await FakeEngine().sample([67], Sampling(max_tokens=6, seed=4))
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[3].text == expected.text
    assert answer.choices[3].logprobs is not None
    assert np.array_equal(np.float32(answer.choices[3].logprobs.token_logprobs), expected.logprobs)
    assert [call.prompt_text for call in kept] == ["AB", "AB", "C", "C"]


async def test_a_prompt_without_room_for_an_answer_is_refused_with_what_to_do() -> None:
    async with serving(FakeEngine(), max_model_len=20) as (client, _):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=HELLO)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.body["message"] == (  # type: ignore[index]
        "the prompt has 23 tokens, and this model has room for 20 of prompt and response together: "
        "shorten the conversation, or raise model.max_model_len"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
        ({"top_logprobs": 4}, "only the sampled token's log-prob is known"),
        ({"response_format": {"type": "json_object"}}, "answers are not held to a format here"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "this model reads text alone"),
    ],
)
async def test_a_request_that_cannot_be_answered_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    async with serving(FakeEngine()) as (client, kept):
        body = {"model": "tiny", "messages": HELLO, **changes}
        async with httpx.AsyncClient(base_url=str(client.base_url)) as plain:
            answer = await plain.post("chat/completions", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert kept == []


async def test_the_room_that_is_left_bounds_the_answer() -> None:
    async with serving(FakeEngine(), max_model_len=25) as (client, _):
        answer = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1000)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


async def test_where_sampling_is_fixed_a_request_cannot_change_the_distribution() -> None:
    async with serving(FakeEngine(), defaults=Sampling(max_tokens=6, temperature=0.7), is_sampling_fixed=True) as (
        client,
        kept,
    ):
        await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0.0, max_tokens=4)
        await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0.0, max_tokens=400)
    assert [(call.temperature, len(call.completion.token_ids)) for call in kept] == [(0.7, 4), (0.7, 6)]


async def test_without_the_key_nobody_is_answered() -> None:
    async with serving(FakeEngine(), api_key="secret") as (client, _):
        await client.models.list()
        with pytest.raises(openai.AuthenticationError, match="a wrong API key, or none"):
            await client.with_options(api_key="guess").models.list()


async def test_a_model_that_has_no_weights_yet_says_so_and_an_unknown_session_too() -> None:
    async with serving(FakeEngine(), obstacle=lambda: "no weights have been announced") as (client, _):
        with pytest.raises(openai.InternalServerError, match="no weights have been announced") as refused:
            await client.chat.completions.create(model="tiny", messages=HELLO)
        assert refused.value.status_code == 503
        async with httpx.AsyncClient() as plain:
            url = str(client.base_url).replace("/v1", "/sessions/none/v1")
            assert (await plain.get(f"{url}models")).status_code == 404
            assert (await plain.get(str(client.base_url).replace("/v1/", "/health"))).status_code == 503


async def test_a_dead_engine_is_told_and_noticed() -> None:
    engine = FakeEngine()
    async with serving(engine) as (client, _):
        await engine.stop()
        with pytest.raises(openai.InternalServerError, match="the engine has died"):
            await client.chat.completions.create(model="tiny", messages=HELLO)
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="the engine has died"):
            [chunk async for chunk in stream]


async def test_a_port_that_is_taken_is_told_with_the_key_to_change() -> None:
    endpoint = Endpoint()
    first = WebServer(endpoint.app)
    await first.start()
    try:
        with pytest.raises(PortTaken, match=r"cannot listen at 127\.0\.0\.1:\d+ .*set explorer\.proxy_port to another"):
            await WebServer(endpoint.app, port=first.port, key="explorer.proxy_port").start()
    finally:
        await first.stop()
