"""A vLLM engine beside another in one process: its scores are the model's own, and it answers beside the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.weights import WeightVersion
from services.inference.auxiliary import AuxiliaryFailed, Defaults, EngineModel
from services.inference.engine import Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def _settings(model: Path, **changes: Any) -> VllmSettings:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "enforce_eager": True}
    return VllmSettings(str(model), **(settings | changes))


@pytest.mark.e2e
async def test_an_auxiliary_engine_beside_the_policys_scores_what_the_policy_sampled(tiny_model: Path) -> None:
    policy = VllmEngine(_settings(tiny_model))
    teacher_engine = VllmEngine(_settings(tiny_model, is_fixed=True))
    teacher = EngineModel("teacher", teacher_engine, Defaults(max_tokens=8, max_model_len=96))
    await policy.start()
    await teacher.start()
    try:
        await policy.load(str(tiny_model), WeightVersion(incarnation=1, version=3))
        prompt = policy.tokenizer.encode("1+1=")
        sampled = await policy.sample(prompt, Sampling(max_tokens=40, ignore_eos=True))
        scored = await teacher.logprobs(prompt, sampled.token_ids.tolist())
        again = await teacher.logprobs(prompt, sampled.token_ids.tolist())  # with its prompt in the cache
        own = await policy.score(prompt, sampled.token_ids.tolist())
        said = await teacher.chat([{"role": "user", "content": "1+1="}], temperature=0.0)
        same = await teacher.chat([{"role": "user", "content": "1+1="}], temperature=0.0)
        with pytest.raises(AuxiliaryFailed, match="a prompt of 100 tokens, where max_model_len=96"):
            await teacher.logprobs([1] * 60, [1] * 40)
    finally:
        await policy.stop()
        await teacher.stop()

    true = _logprobs(tiny_model, prompt, sampled.token_ids.tolist())
    assert set(sampled.token_versions.tolist()) == {3}
    assert teacher_engine.weights == WeightVersion()
    assert scored.dtype == np.float32
    for found in (scored, again, own, sampled.logprobs):
        assert np.abs(found - true).max() < 1e-3
    assert said == same


def _logprobs(directory: Path, prompt: list[int], response: list[int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = [*prompt, *response]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
    return np.array([float(logprobs[place - 1, tokens[place]]) for place in range(len(prompt), len(tokens))])
