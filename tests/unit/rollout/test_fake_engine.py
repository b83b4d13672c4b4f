"""The fake engine keeps the promises of the port, the same on every machine."""

import asyncio
from pathlib import Path

import pytest

from schemas.weights import WeightVersion
from services.inference.engine import Completion, Engine, EngineDied, Sampling
from services.inference.fake import FakeEngine, write_fake_weights

PROMPT = list(b"21+34=")


async def started() -> FakeEngine:
    engine = FakeEngine()
    await engine.start()
    return engine


async def test_the_same_seed_and_version_sample_the_same_tokens() -> None:
    engine: Engine = await started()
    first = await engine.sample(PROMPT, Sampling(max_tokens=8, seed=5))
    again = await (await started()).sample(PROMPT, Sampling(max_tokens=8, seed=5))
    other = await engine.sample(PROMPT, Sampling(max_tokens=8, seed=6))
    assert first.token_ids.tolist() == again.token_ids.tolist()
    assert first.token_ids.tolist() != other.token_ids.tolist()
    assert first.text == bytes(first.token_ids.tolist()).decode()
    assert (first.logprobs < 0).all()
    assert first.is_truncated


async def test_repeated_requests_without_a_seed_differ() -> None:
    engine = await started()
    texts = [(await engine.sample(PROMPT, Sampling(max_tokens=8))).text for _ in range(4)]
    assert len(set(texts)) == 4


async def test_a_request_in_flight_goes_on_under_the_new_version(tmp_path: Path) -> None:
    engine = FakeEngine(delay_s_per_token=0.001)
    await engine.start()
    write_fake_weights(tmp_path, 7)
    request = asyncio.create_task(engine.sample(PROMPT, Sampling(max_tokens=40)))
    while engine.load_now().tokens_sampled < 10:
        await asyncio.sleep(0)
    await engine.load(str(tmp_path), WeightVersion(incarnation=1, version=7))
    completion: Completion = await request
    versions = completion.token_versions.tolist()
    swap = versions.index(7)
    assert swap >= 10
    assert versions == [0] * swap + [7] * (40 - swap)
    assert engine.weights == WeightVersion(incarnation=1, version=7)


async def test_weights_of_another_version_are_refused_and_the_old_ones_stay(tmp_path: Path) -> None:
    engine = await started()
    write_fake_weights(tmp_path, 3)
    with pytest.raises(ValueError, match="holds version 3, where 4 was announced"):
        await engine.load(str(tmp_path), WeightVersion(version=4))
    assert engine.weights is None


async def test_a_stop_text_ends_a_response_and_is_not_in_its_text() -> None:
    engine = FakeEngine(replies={"2+2=": "4\nand more"})
    await engine.start()
    completion = await engine.sample(list(b"2+2="), Sampling(max_tokens=20, stop=("\n",)))
    assert completion.text == "4"
    assert completion.token_ids.tolist() == list(b"4\n")
    assert not completion.is_truncated


async def test_a_stopped_engine_fails_its_requests() -> None:
    engine = await started()
    request = asyncio.create_task(engine.sample(PROMPT, Sampling(max_tokens=10_000)))
    while engine.load_now().requests == 0:
        await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineDied):
        await request
    assert engine.load_now().requests == 0
