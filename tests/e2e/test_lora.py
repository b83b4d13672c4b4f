"""An adapter is trained, travels alone, and is sampled with: every log-prob is that of the base and that version's."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from schemas.weights import WeightsAnnounced, WeightVersion
from services.inference.announcements import announcements
from services.inference.engine import Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings
from services.inference.vllm_lora import LoraSettings
from services.inference.weights import WeightsUnusable

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

RANK, ALPHA = 4, 8
TERMS = {
    "optimizer": {"lr": 1e-2},
    "kl_loss_fn": "k2",
    "kl_loss_fn_args": {"kl_coef": 0.1},
    "entropy_loss_fn": "default",
    "entropy_loss_fn_args": {"entropy_coef": 0.1},
}
"""A random model earns no reward; its entropy can be raised all the same."""


@pytest.fixture
def adapters(tiny_model: Path, tmp_path: Path) -> dict[int, Path]:
    """By version: 0 without effect, as every adapter begins, and two others."""
    import torch
    from peft import LoraConfig, get_peft_model

    found = {}
    for version in (0, 1, 2):
        torch.manual_seed(version)
        settings = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(_base(tiny_model), settings)
        for name, parameter in model.named_parameters():
            if version > 0 and ".lora_B." in name:
                parameter.data.normal_(0.0, 0.1)
        found[version] = tmp_path / f"adapter_{version}"
        model.save_pretrained(found[version])
    return found


@pytest.mark.e2e
async def test_tokens_on_both_sides_of_a_swap_have_the_logprobs_of_the_base_and_their_own_versions_adapter(
    tiny_model: Path, noised_model: Path, adapters: dict[int, Path]
) -> None:
    lora = LoraSettings(rank=RANK)
    engine = VllmEngine(
        VllmSettings(str(tiny_model), dtype="float32", max_model_len=256, enforce_eager=True, lora=lora)
    )
    await engine.start()
    try:
        await engine.load(str(tiny_model), WeightVersion())
        prompt = engine.tokenizer.encode("1+1=")
        first = await engine.sample(prompt, Sampling(max_tokens=20, ignore_eos=True))
        await engine.load(str(adapters[0]), WeightVersion(incarnation=1, version=0))
        requests = [
            asyncio.create_task(engine.sample(prompt, Sampling(max_tokens=240, ignore_eos=True))) for _ in range(4)
        ]
        while engine.load_now().requests < 4:
            await asyncio.sleep(0.01)
        for version in (1, 2):
            await asyncio.sleep(0.25)
            await engine.load(str(adapters[version]), WeightVersion(incarnation=1, version=version))
        completions = [first, *await asyncio.gather(*requests)]
        scored = await engine.score(prompt, completions[1].token_ids.tolist())
        await engine.load(str(adapters[1]), WeightVersion(incarnation=2, version=1))
        completions.append(await engine.sample(prompt, Sampling(max_tokens=20, ignore_eos=True)))
        for whole in (noised_model, tiny_model):
            with pytest.raises(WeightsUnusable):
                await engine.load(str(whole), WeightVersion(incarnation=2, version=2))
    finally:
        await engine.stop()

    assert {int(version) for done in completions[1:5] for version in done.token_versions} == {0, 1, 2}
    assert set(completions[-1].token_versions.tolist()) == {1}
    for version, path in adapters.items():
        model = _adapted(tiny_model, path)
        for completion in completions:
            place = completion.token_versions == version
            true = _logprobs(model, [*prompt, *completion.token_ids.tolist()], len(prompt))
            assert np.abs(completion.logprobs - true)[place].max(initial=0.0) < 1e-4
        true = _logprobs(model, [*prompt, *completions[1].token_ids.tolist()], len(prompt))
        assert (np.abs(scored - true).max() < 1e-4) == (version == 2)


@pytest.mark.e2e
async def test_a_run_trains_the_adapter_alone_and_its_explorer_samples_with_each_version(
    start, real_config, tiny_model: Path, tmp_path: Path
) -> None:
    real_config["model"]["lora_configs"] = [{"name": "sums", "lora_rank": RANK, "lora_alpha": ALPHA}]
    real_config["algorithm"] |= TERMS
    real_config["buffer"]["total_steps"] = 2
    real_config["cluster"]["trainer_ranks"] = 1
    real_config["synchronizer"] = {"sync_offset": 0, "keep_versions": -1}
    run = start(real_config)
    announced: list[WeightsAnnounced] = []
    async with run.bus() as bus:
        async for each in announcements(bus, start=1):
            announced.append(each)
            if each.is_final:
                break
    assert await run.ends(patience_s=400) == 0, run.output[-4000:]

    assert {(each.weights.version, each.is_adapter) for each in announced} == {(0, True), (1, True), (2, True)}
    for each in announced:
        assert {file.name for file in each.files} == {"adapter_config.json", "adapter_model.safetensors"}
        assert sum(file.size_bytes for file in each.files) < 60_000
    models = {each.weights.version: _adapted(tiny_model, Path(each.uri)) for each in announced}
    base = _base(tiny_model)
    rows = _exported(tmp_path)
    assert {version for row in rows for version in row["token_versions"]} == {0, 1}
    divergences = []
    for row in rows:
        (version,) = set(row["token_versions"])
        sampled, true = np.array(row["logprobs"]), _logprobs(models[version], row["tokens"], row["prompt_length"])
        assert np.abs(sampled - true).max() < 1e-4
        divergences += [(version, k) for k in (true - _logprobs(base, row["tokens"], row["prompt_length"])) ** 2 / 2]
    said = _trainer_metric(run.config.run_dir, "actor/kl_loss")
    of_version = [np.mean([k for v, k in divergences if v == version]) for version in (0, 1)]
    assert said[0] == pytest.approx(0.0, abs=1e-9)
    assert said[1] == pytest.approx(of_version[1], rel=1e-3)
    assert said[1] > 1e-4
    _assert_the_base_is_untouched(run.config.run_dir / "global_step_2" / "actor", tiny_model)


def _assert_the_base_is_untouched(checkpoint: Path, base: Path) -> None:
    from safetensors.torch import load_file

    from services.trainer.sharded import Shards

    saved = Shards(checkpoint).model()
    bases = load_file(base / "model.safetensors")
    kept = {name for name in saved if ".lora_" not in name}
    assert len(kept) >= len(bases)
    for name in kept:
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        whole = saved[name].whole()
        assert np.array_equal(whole.numpy(), bases.get(plain, bases["model.embed_tokens.weight"]).numpy()), name


def _exported(tmp_path: Path) -> list[dict[str, Any]]:
    out = tmp_path / "experiences.parquet"
    command = ["export", "--config", str(tmp_path / "run.yaml"), "--out", str(out)]
    found = subprocess.run(
        [sys.executable, "-m", "services.cli", *command], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(out).to_pylist()
    return rows


def _trainer_metric(run_dir: Path, name: str) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = EventAccumulator(str(run_dir / "monitor" / "tensorboard" / "trainer"))
    record.Reload()
    return [event.value for event in record.Scalars(name)]


def _base(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def _adapted(base: Path, adapter: Path) -> Any:
    """By `transformers` and `peft` alone."""
    from peft import PeftModel

    facts = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert (facts["r"], facts["lora_alpha"]) == (RANK, ALPHA)
    return PeftModel.from_pretrained(_base(base), str(adapter))


def _logprobs(model: Any, tokens: list[int], start: int) -> Any:
    import torch

    with torch.no_grad():
        found = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
    return np.array([float(found[place - 1, tokens[place]]) for place in range(start, len(tokens))])
