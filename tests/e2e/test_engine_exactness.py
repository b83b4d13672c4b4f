"""vLLM under weights that change while it samples: each token has the log-prob of the version that it claims."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from schemas.weights import WeightVersion
from services.inference.engine import EngineDied, Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.e2e
async def test_tokens_on_both_sides_of_a_swap_have_their_own_versions_logprobs(
    tiny_model: Path, noised_model: Path
) -> None:
    engine = VllmEngine(
        VllmSettings(
            str(tiny_model), dtype="float32", max_model_len=256, enforce_eager=True, enable_prefix_caching=True
        )
    )
    await engine.start()
    try:
        await engine.load(str(tiny_model), WeightVersion(incarnation=1, version=0))
        prompt = engine.tokenizer.encode("1+1=")
        sampling = Sampling(max_tokens=240, ignore_eos=True)
        requests = [asyncio.create_task(engine.sample(prompt, sampling)) for _ in range(4)]
        while engine.load_now().requests < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        await engine.load(str(noised_model), WeightVersion(incarnation=1, version=1))
        completions = await asyncio.gather(*requests)
        after = await engine.sample(prompt, Sampling(max_tokens=20, ignore_eos=True))
    finally:
        await engine.stop()

    models = {0: _model(tiny_model), 1: _model(noised_model)}
    assert {int(version) for done in completions for version in done.token_versions} == {0, 1}
    assert set(after.token_versions.tolist()) == {1}
    for completion in [*completions, after]:
        assert (np.diff(completion.token_versions) >= 0).all()
        for version, model in models.items():
            place = completion.token_versions == version
            true = _logprobs(model, prompt, completion.token_ids)
            assert np.abs(completion.logprobs - true)[place].max(initial=0.0) < 1e-3


@pytest.mark.e2e
async def test_weights_that_are_cut_off_end_the_engine_and_the_requests_in_flight(
    tiny_model: Path, noised_model: Path
) -> None:
    engine = VllmEngine(VllmSettings(str(tiny_model), dtype="float32", max_model_len=256, enforce_eager=True))
    await engine.start()
    try:
        await engine.load(str(tiny_model), WeightVersion(incarnation=1, version=0))
        prompt = engine.tokenizer.encode("1+1=")
        request = asyncio.create_task(engine.sample(prompt, Sampling(max_tokens=240, ignore_eos=True)))
        while engine.load_now().requests == 0:
            await asyncio.sleep(0.01)
        weights = noised_model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        with pytest.raises(EngineDied, match="version 1 was not loaded as a whole"):
            await engine.load(str(noised_model), WeightVersion(incarnation=1, version=1))
        with pytest.raises(EngineDied, match="version 1"):
            await asyncio.wait_for(request, timeout=60)
        with pytest.raises(EngineDied, match="version 1"):
            await engine.sample(prompt, Sampling(max_tokens=1))
        assert engine.weights == WeightVersion(incarnation=1, version=0)
    finally:
        await engine.stop()
        del request
        gc.collect()  # what the errors hold of vLLM, while its warnings are still ours to ignore


def _model(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def _logprobs(model: Any, prompt: list[int], response: Any) -> Any:
    import torch

    tokens = [*prompt, *response.tolist()]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
    return np.array([float(logprobs[place - 1, tokens[place]]) for place in range(len(prompt), len(tokens))])


@pytest.mark.e2e
async def test_no_engine_process_outlives_an_owner_that_was_killed(tiny_model: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from services.inference.vllm_engine import VllmEngine, VllmSettings\n"
        "async def main():\n"
        f"    engine = VllmEngine(VllmSettings({str(tiny_model)!r}, max_model_len=64, enforce_eager=True))\n"
        "    await engine.start()\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = tiny_model.parent / "owner.py"
    script.write_text(program, encoding="utf-8")
    owner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert any(line == "started\n" for line in owner.stdout)
    engines = psutil.Process(owner.pid).children(recursive=True)
    assert len(engines) >= 2
    owner.kill()
    owner.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, engines, 30)
    assert alive == []
