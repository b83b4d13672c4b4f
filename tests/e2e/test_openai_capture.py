"""Real vLLM behind the endpoint: what is captured is what the engine sampled, also while its weights change."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.weights import WeightVersion
from services.inference.engine import Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings
from services.rollout.policy import Policy, Prompting

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MODEL_LENGTH = 512
LONG = 400


@pytest.mark.e2e
async def test_what_an_agent_hears_over_http_is_learned_as_the_engine_sampled_it(
    tiny_model: Path, noised_model: Path
) -> None:
    engine = VllmEngine(VllmSettings(str(tiny_model), dtype="float32", max_model_len=MODEL_LENGTH, enforce_eager=True))
    await engine.start()
    try:
        await engine.load(str(tiny_model), WeightVersion(incarnation=1, version=0))
        policy = Policy(engine, Sampling(max_tokens=24, temperature=0.8), Prompting(max_model_len=MODEL_LENGTH))
        async with policy.recording() as session:
            turns = await _talked(session, seed=5)
            alone = await engine.sample(session.calls[0].prompt_ids, Sampling(max_tokens=24, temperature=0.8, seed=5))
            (experience,) = session.experiences(0, 1.0)
        swapped = await _over_a_swap(engine, policy, noised_model)
    finally:
        await engine.stop()

    first, last = session.calls[0], session.calls[-1]
    assert first.completion.token_ids.tolist() == alone.token_ids.tolist()
    assert np.abs(first.completion.logprobs - alone.logprobs).max() < 1e-5
    assert experience.tokens.tolist() == list(last.ids)
    assert turns == [engine_text(call) for call in session.calls]
    assert int(experience.action_mask.sum()) == sum(len(call.completion.token_ids) for call in session.calls)
    true = _logprobs(tiny_model, experience.tokens, experience.prompt_length, temperature=0.8)
    learned = experience.action_mask > 0
    assert np.abs(experience.logprobs - true)[learned].max() < 1e-3

    models = {0: tiny_model, 1: noised_model}
    for one in swapped:
        assert set(one.token_versions.tolist()) == {0, 1}
        for version, model in models.items():
            place = one.token_versions == version
            true = _logprobs(model, one.tokens, one.prompt_length, temperature=0.8)
            assert np.abs(one.logprobs - true)[place].max() < 1e-3


def engine_text(call: Any) -> str:
    return str(call.completion.text)


async def _talked(session: Any, seed: int) -> list[str]:
    """Two turns, the second in a stream. Returns what the agent heard."""
    messages: list[Any] = [{"role": "user", "content": "1+1="}]
    whole = await session.client.chat.completions.create(model="m", messages=messages, seed=seed)
    said = whole.choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and again?"}]
    stream = await session.client.chat.completions.create(model="m", messages=messages, seed=seed, stream=True)
    heard = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert len([piece for piece in heard if piece]) > 1, "it came in pieces"
    return [said, "".join(heard)]


async def _over_a_swap(engine: VllmEngine, policy: Policy, weights: Path) -> list[Any]:
    """Eight long answers, half of them streams, with new weights adopted in their middle."""
    long = policy.with_sampling(max_tokens=LONG, ignore_eos=True)

    async def asked(number: int) -> Any:
        async with long.recording() as session:
            story: list[Any] = [{"role": "user", "content": f"a story, number {number}"}]
            answer = await session.client.chat.completions.create(model="m", messages=story, stream=number % 2 == 1)
            if number % 2 == 1:
                assert [chunk async for chunk in answer][-1].choices[0].finish_reason == "length"
            (experience,) = session.experiences(number, 0.0)
            return experience

    running = [asyncio.create_task(asked(number)) for number in range(8)]
    while engine.load_now().requests < 8:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)  # some of each answer comes before the new weights
    await engine.load(str(weights), WeightVersion(incarnation=1, version=1))
    return list(await asyncio.gather(*running))


def _logprobs(directory: Path, tokens: Any, start: int, temperature: float) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = tokens.tolist()
    with torch.no_grad():
        found = torch.log_softmax(model(torch.tensor([ids])).logits[0] / temperature, dim=-1)
    return np.array([float(found[place - 1, ids[place]]) for place in range(start, len(ids))])
