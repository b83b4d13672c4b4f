"""A checkpoint becomes a model that transformers loads, or an error that says what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from services.cli.main import app
from services.inference.layers import ADAPTER_CONFIG, ADAPTER_FILE
from services.prepare.tiny import prepare_tiny
from services.trainer import checkpoints
from services.trainer.checkpoint_reading import load_fsdp_state_dict_from_verl_checkpoint
from services.trainer.exporting import INDEX_FILE, export
from services.trainer.ledger import Ledger

TOKENS = torch.tensor([[5, 17, 200, 3, 90, 41]])
CONFIG = {
    "model": {"model_path": "none", "max_prompt_tokens": 8, "max_response_tokens": 8},
    "buffer": {"batch_size": 1, "total_steps": 1, "explorer_input": {"taskset": {"name": "t", "path": "t.jsonl"}}},
    "trainer": {"trainer_type": "fake"},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    prepare_tiny(root)
    return root / "model"


def _model(path: Path, seed: int | None = None) -> Any:
    """Of a directory, with other weights where a seed is given."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path)
    if seed is not None:
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=chance)
    return model.eval()


def _commit(run_dir: Path, model: Any, step: int = 9, **facts: Any) -> Path:
    """A checkpoint as one rank writes it. `facts` are those of a LoRA, whose adapter is there for others too."""
    from transformers import AutoTokenizer

    def write(directory: Path) -> None:
        beside = directory / "actor" / "huggingface"
        beside.mkdir(parents=True)
        model.config.save_pretrained(beside)
        AutoTokenizer.from_pretrained(model.config.name_or_path).save_pretrained(beside)
        torch.save(model.state_dict(), directory / "actor" / "model_world_size_1_rank_0.pt")
        if facts:
            (directory / "actor" / "lora_train_meta.json").write_text(json.dumps(facts))
            model.save_pretrained(beside)  # as trainer.save_hf_checkpoint does
            assert {ADAPTER_CONFIG, ADAPTER_FILE} <= {path.name for path in beside.iterdir()}

    return checkpoints.commit(run_dir, Ledger(step=step), write).directory


def _convert(*arguments: object) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["convert", "checkpoint", *map(str, arguments)])
    return ended.exit_code, ended.output


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits.float()


def test_a_checkpoint_is_loaded_outside_of_the_framework(tiny: Path, tmp_path: Path) -> None:
    trained = _model(tiny, seed=1)
    directory = _commit(tmp_path, trained)
    status, said = _convert(directory, "--into", tmp_path / "out")
    assert (status, "global_step_9/actor, 1 rank: 20 tensors in float32" in said) == (0, True), said
    assert torch.equal(_logits(_model(tmp_path / "out")), _logits(trained))
    status, said = _convert(directory / "actor", "--into", tmp_path / "half", "--dtype", "bf16")
    assert (status, "bfloat16" in said) == (0, True), said
    halved = _model(tmp_path / "half").state_dict()
    for name, tensor in trained.state_dict().items():
        assert torch.equal(halved[name], tensor.to(torch.bfloat16)), name


def test_a_run_is_converted_at_its_newest_step_or_at_one_that_is_named(tiny: Path, tmp_path: Path) -> None:
    models = {step: _model(tiny, seed=step) for step in (3, 6)}
    for step, model in models.items():
        _commit(tmp_path / "run", model, step)
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(CONFIG | {"checkpoint_job_dir": str(tmp_path / "run")}), encoding="utf-8")
    assert _convert("--config", config, "--into", tmp_path / "newest")[0] == 0
    assert _convert("--config", config, "--step", 3, "--into", tmp_path / "third")[0] == 0
    assert torch.equal(_logits(_model(tmp_path / "newest")), _logits(models[6]))
    assert torch.equal(_logits(_model(tmp_path / "third")), _logits(models[3]))
    status, said = _convert("--config", config, "--step", 4, "--into", tmp_path / "fourth")
    assert (status, "has no global_step_4 in force; it has 3, 6" in said) == (2, True), said


def test_a_large_model_is_written_in_files_of_bounded_size(tiny: Path, tmp_path: Path) -> None:
    trained = _model(tiny, seed=1)
    export(_commit(tmp_path, trained) / "actor", tmp_path / "out", max_file_bytes=100_000)
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) >= 4
    assert all(file.stat().st_size < 105_000 for file in files)
    assert set(json.loads((tmp_path / "out" / INDEX_FILE).read_text())["weight_map"].values()) == {
        f.name for f in files
    }
    assert torch.equal(_logits(_model(tmp_path / "out")), _logits(trained))


def test_an_adapter_is_merged_or_written_alone(tiny: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    adapted = get_peft_model(_model(tiny), LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"]))
    chance = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=chance)
    adapted.eval()
    actor = _commit(tmp_path, adapted, r=4, lora_alpha=12, task_type="CAUSAL_LM") / "actor"
    assert _convert(actor, "--into", tmp_path / "merged")[0] == 0
    assert _convert(actor, "--into", tmp_path / "adapter", "--adapter")[0] == 0
    assert not (tmp_path / "merged" / ADAPTER_CONFIG).exists()
    expected, base = _logits(adapted), _logits(_model(tiny))
    assert (expected - base).abs().max() > 0.1
    assert torch.allclose(_logits(_model(tmp_path / "merged")), expected, atol=1e-5)
    assert torch.equal(_logits(PeftModel.from_pretrained(_model(tiny), tmp_path / "adapter")), expected)
    restored = _model(tiny)
    restored.load_state_dict(load_fsdp_state_dict_from_verl_checkpoint(actor))
    assert torch.allclose(_logits(restored), expected, atol=1e-5)


def test_what_cannot_be_converted_is_told_and_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    directory, into = _commit(tmp_path, _model(tiny, seed=1)), tmp_path / "out"
    interrupted = tmp_path / ".global_step_9.1.writing"
    directory.rename(interrupted)
    cases = {
        "interrupted save": (interrupted,),
        "is not there": (directory,),
        "holds no actor": (tmp_path,),
        "not both": (interrupted, "--config", tmp_path / "run.yaml"),
    }
    for words, arguments in cases.items():
        status, said = _convert(*arguments, "--into", into)
        assert (status, words in said) == (2, True), said
    interrupted.rename(directory)
    assert "holds no critic" in _convert(directory, "--into", into, "--model", "critic")[1]
    assert "has no adapter" in _convert(directory, "--into", into, "--adapter")[1]
    assert "is in use" in _convert(directory, "--into", tiny)[1]
    shards = directory / "actor" / "model_world_size_1_rank_0.pt"
    written = bytearray(shards.read_bytes())
    written[len(written) // 2] ^= 1
    shards.write_bytes(written)
    status, said = _convert(directory, "--into", into)
    assert (status, "is damaged: actor/model_world_size_1_rank_0.pt: its contents have changed" in said) == (2, True), (
        said
    )
    shards.unlink()
    assert "model_world_size_1_rank_0.pt is not there" in _convert(directory, "--into", into)[1]
    assert not into.exists()


def test_a_model_that_the_disk_has_no_room_for_is_not_begun(tiny: Path, tmp_path: Path) -> None:
    model = _model(tiny)
    model.register_buffer("large", torch.zeros(1).expand(10**14))  # of one number on disk
    status, said = _convert(_commit(tmp_path, model), "--into", tmp_path / "out")
    assert (status, "are free: choose another place, or --dtype bf16" in said) == (2, True), said
    assert not (tmp_path / "out").exists()
