"""An agent that talks to the policy over HTTP: its conversations become experiences, exactly as they were sampled."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from services.inference.engine import Completion, Sampling
from services.inference.fake import FakeEngine
from services.inference.openai.calls import Call, Memory
from services.rollout.errors import EmptyResponse
from services.rollout.policy import Policy, Prompting
from services.rollout.recording import chains, experience_of


def _user(text: str) -> Any:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


def _call(prompt: str, response: str, at: float, version: int = 0, temperature: float = 1.0) -> Call:
    ids = np.frombuffer(response.encode(), np.uint8).astype(np.int32)
    completion = Completion(
        token_ids=ids,
        logprobs=np.full(len(ids), -0.25 * (version + 1), np.float32),
        token_versions=np.full(len(ids), version, np.int32),
        text=response,
        is_truncated=False,
    )
    return Call(f"call-{at}", 0, tuple(prompt.encode()), prompt, completion, temperature=temperature, at=at)


@pytest.fixture
def policy() -> Callable[..., Policy]:
    def make(*lines: str, **sampling: Any) -> Policy:
        return Policy(FakeEngine(lines=lines), Sampling(max_tokens=40, **sampling), Prompting(max_model_len=400))

    return make


async def test_the_turns_of_one_conversation_are_one_experience_and_only_what_was_sampled_is_learned(policy) -> None:
    async with policy("four\n", "five\n").recording() as session:
        first = await session.client.chat.completions.create(model=session.model, messages=[_user("2+2")])
        said = first.choices[0].message.content
        turns = [_user("2+2"), _assistant(said.removesuffix("\n")), _user("and 1")]
        await session.client.chat.completions.create(model=session.model, messages=turns)
    (experience,) = session.experiences(3, 0.5, {"accuracy": 1.0})
    text = "user: 2+2\nassistant: four\nuser: and 1\nassistant: five\n"
    assert bytes(experience.tokens.tolist()).decode() == text
    assert experience.prompt_length == len("user: 2+2\nassistant: ")
    learned = bytes(experience.tokens[experience.prompt_length :][experience.action_mask > 0].tolist()).decode()
    assert learned == "four\nfive\n"
    sampled = np.concatenate([call.completion.logprobs for call in session.calls])
    assert np.array_equal(experience.logprobs[experience.action_mask > 0], sampled)
    assert (experience.logprobs[experience.action_mask == 0] == 0).all()
    assert (experience.position, experience.step, experience.reward) == (3, 0, 0.5)
    assert (experience.metrics, experience.response_text) == (
        {"accuracy": 1.0},
        "four\nuser: and 1\nassistant: five\n",
    )


async def test_calls_that_do_not_go_on_from_each_other_are_steps(policy) -> None:
    async with policy("a\n", "b\n").recording() as session:
        for question in ("one", "two"):
            await session.client.chat.completions.create(model=session.model, messages=[_user(question)])
    experiences = session.experiences(0, 1.0)
    assert [(each.step, each.prompt_text) for each in experiences] == [
        (0, "user: one\nassistant: "),
        (1, "user: two\nassistant: "),
    ]


async def test_an_agent_outside_needs_only_the_address_and_the_key(policy) -> None:
    async with policy("hello\n").recording() as session:
        async with httpx.AsyncClient() as agent:
            answer = await agent.post(
                f"{session.base_url}/chat/completions",
                json={"model": "anything", "messages": [_user("hi")]},
                headers={"Authorization": f"Bearer {session.api_key}"},
            )
        assert answer.json()["choices"][0]["message"]["content"] == "hello\n"
        assert len(session.calls) == 1
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as agent:
            await agent.get(f"{session.base_url}/models")


async def test_two_sessions_of_one_engine_do_not_hear_each_other(policy) -> None:
    shared = policy("x\n")
    async with shared.recording() as one, shared.recording() as other:
        await one.client.chat.completions.create(model="m", messages=[_user("1")])
        await other.client.chat.completions.create(model="m", messages=[_user("2")])
        assert one.base_url.split("/sessions/")[0] == other.base_url.split("/sessions/")[0]
    assert [call.prompt_text for call in one.calls] == ["user: 1\nassistant: "]
    assert [call.prompt_text for call in other.calls] == ["user: 2\nassistant: "]


async def test_a_session_samples_as_the_policy_does(policy) -> None:
    async with policy(temperature=0.7, seed=11).recording() as session:
        await session.client.chat.completions.create(model="m", messages=[_user("1")], temperature=0.0, max_tokens=3)
    (call,) = session.calls
    alone = await FakeEngine().sample(list(call.prompt_ids), Sampling(max_tokens=3, seed=11))
    assert call.temperature == 0.7
    assert call.completion.token_ids.tolist() == alone.token_ids.tolist()


async def test_a_prompt_that_is_too_long_is_the_agents_error(policy) -> None:
    async with policy("x").recording() as session:
        with pytest.raises(openai.BadRequestError, match="room for 400"):
            await session.client.chat.completions.create(model="m", messages=[_user("y" * 500)])
        with pytest.raises(EmptyResponse, match="has not asked the policy"):
            session.experiences(0, 0.0)


def test_a_second_answer_to_the_same_turn_begins_a_conversation_of_its_own() -> None:
    first = _call("q ", "a1 ", 1.0)
    on, again = _call("q a1 r ", "b1 ", 2.0), _call("q a1 r ", "b2 ", 3.0)
    assert chains([again, on, first]) == [[first, on], [again]]


def test_calls_of_two_temperatures_are_not_one_experience() -> None:
    first, on = _call("q ", "a ", 1.0), _call("q a r ", "b ", 2.0, temperature=0.5)
    assert chains([first, on]) == [[first], [on]]


def test_every_token_of_a_conversation_has_the_version_that_sampled_it() -> None:
    chain = [_call("q ", "aa", 1.0, version=3), _call("q aa..", "bb", 2.0, version=5)]
    experience = experience_of(chain, 0, 1.0)
    assert experience.token_versions.tolist() == [3, 3, 3, 3, 5, 5]
    assert experience.action_mask.tolist() == [1, 1, 0, 0, 1, 1]
    assert experience.logprobs.tolist() == [-1.0, -1.0, 0.0, 0.0, -1.5, -1.5]
    assert experience_of(chain, 0, 1.0, is_masked=True).action_mask.tolist() == [0] * 6


class _Pairs:
    """A tokenizer that cuts text in pairs, and so cuts a longer text in another way than its parts."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int.from_bytes(text[n : n + 2].encode(), "big") for n in range(0, len(text), 2)]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(each.to_bytes(2, "big").decode().replace("\0", "") for each in ids)


def test_what_was_sampled_is_never_tokenized_again() -> None:
    tokenizer: Any = _Pairs()
    sampled = [ord("b"), *tokenizer.encode("cd")]
    completion = Completion(np.int32(sampled), np.zeros(2, np.float32), np.zeros(2, np.int32), "bcd", False)
    call = Call("1", 0, tuple(tokenizer.encode("aaa")), "aaa", completion)
    memory = Memory(tokenizer)
    memory.remember([call])
    prompt = "aaabcd, and"
    assert memory.encoded(prompt) == (*call.ids, *tokenizer.encode(", and"))
    assert memory.encoded(prompt) != tuple(tokenizer.encode(prompt))
    assert memory.encoded("other") == tuple(tokenizer.encode("other"))
