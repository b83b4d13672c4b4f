"""A policy turns text or messages into responses whose tokens are those that the engine saw."""

from collections.abc import Callable

import pytest

from services.inference.engine import Sampling
from services.rollout.errors import EmptyResponse, PromptTooLong
from services.rollout.policy import Policy, sampling_of


async def test_an_experience_holds_the_prompt_and_every_sampled_token(policy_of: Callable[..., Policy]) -> None:
    sampled = await policy_of({"2+2=": "4"}).complete("2+2=")
    experience = sampled.experience(5, 0.5, {"accuracy": 1.0}, step=2)
    assert experience.tokens.tolist() == list(b"2+2=4")
    assert experience.prompt_length == 4
    assert experience.action_mask.tolist() == [1]
    assert experience.logprobs.tolist() == sampled.completion.logprobs.tolist()
    assert experience.token_versions.tolist() == [0]
    assert (experience.position, experience.step, experience.reward) == (5, 2, 0.5)
    assert (experience.prompt_text, experience.response_text) == ("2+2=", "4")
    assert experience.metrics == {"accuracy": 1.0}
    assert not experience.is_truncated


async def test_a_conversation_is_laid_out_for_the_assistant_to_go_on(policy_of: Callable[..., Policy]) -> None:
    sampled = await policy_of().chat([{"role": "user", "content": "hi"}])
    assert sampled.prompt_text == "user: hi\nassistant: "
    assert bytes(sampled.prompt_ids).decode() == sampled.prompt_text


async def test_a_reply_that_has_begun_is_continued(policy_of: Callable[..., Policy]) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}]
    assert (await policy_of().chat(messages)).prompt_text == "user: hi\nassistant: he"


async def test_a_long_prompt_keeps_its_end_and_is_not_learned_from(policy_of: Callable[..., Policy]) -> None:
    sampled = await policy_of(max_prompt_tokens=4).complete("0123456789")
    experience = sampled.experience(0, 1.0, {"accuracy": 1.0})
    assert bytes(experience.tokens[:4].tolist()) == b"6789"
    assert experience.prompt_text == "6789"
    assert experience.action_mask.tolist() == [0]
    assert experience.reward == 0.0
    assert experience.metrics == {"prompt_truncated": 1.0}


async def test_a_prompt_of_exactly_the_limit_is_whole(policy_of: Callable[..., Policy]) -> None:
    sampled = await policy_of({"0123": "4"}, max_prompt_tokens=4).complete("0123")
    assert not sampled.is_prompt_truncated
    assert sampled.experience(0, 1.0).action_mask.tolist() == [1]


async def test_a_long_prompt_is_refused_where_truncation_is_off(policy_of: Callable[..., Policy]) -> None:
    policy = policy_of(max_prompt_tokens=4, enable_prompt_truncation=False)
    with pytest.raises(PromptTooLong, match="a prompt of 10 tokens, where max_prompt_tokens=4"):
        await policy.complete("0123456789")


async def test_a_response_without_tokens_is_an_error(policy_of: Callable[..., Policy]) -> None:
    with pytest.raises(EmptyResponse, match="no token was sampled for a prompt of 4 tokens"):
        await policy_of({"2+2=": ""}).complete("2+2=")


async def test_a_prompt_without_tokens_is_an_error(policy_of: Callable[..., Policy]) -> None:
    with pytest.raises(EmptyResponse, match="the prompt has no tokens"):
        await policy_of().complete("")


async def test_answers_to_one_task_have_seeds_of_their_own(policy_of: Callable[..., Policy]) -> None:
    policy = policy_of(sampling=Sampling(max_tokens=8, seed=40))
    texts = [(await policy.at(position).complete("x")).text for position in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_sampling_arguments_left_open_keep_the_defaults() -> None:
    arguments = {"temperature": 0.5, "top_p": None, "stop": ["\n"], "n": 8, "logprobs": 0, "max_tokens": 3}
    assert sampling_of(arguments) == Sampling(temperature=0.5, stop=("\n",), max_tokens=3)
