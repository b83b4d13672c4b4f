"""The adapter as the trainer handles it: taken out and put back, and the same file each time."""

import json
from pathlib import Path

import torch

from services.trainer.backends.adapter import adapter_off, write_adapter


def test_with_its_adapter_off_a_model_is_its_base_and_the_adapter_stays_trainable() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(4, 3))
    rows = torch.randn(5, 4)
    plain = base(rows)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    adapted = model(rows)
    with adapter_off(model):
        assert torch.equal(model(rows), plain)
        assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == trained
    assert torch.equal(model(rows), adapted)
    assert not torch.allclose(adapted, plain)
    assert len(trained) == 2


def test_an_adapter_is_written_in_pefts_layout_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.utils.save_and_load import get_peft_model_state_dict

    names = ["q_proj", "k_proj", "v_proj", "up_proj"]
    base = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in names})
    model = get_peft_model(base, LoraConfig(r=2, target_modules=names, init_lora_weights=False))
    parameters = get_peft_model_state_dict(model)
    settings = model.peft_config["default"].to_dict()
    for directory in ("one", "other"):
        (tmp_path / directory).mkdir()
        write_adapter(tmp_path / directory, parameters, settings | {"target_modules": set(names)})
    files = ("adapter_config.json", "adapter_model.safetensors")
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes() for file in files)
    facts = json.loads((tmp_path / "one" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (facts["peft_type"], facts["r"], facts["target_modules"]) == ("LORA", 2, sorted(names))
    loaded = PeftModel.from_pretrained(
        torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in names}), str(tmp_path / "one")
    )
    found = get_peft_model_state_dict(loaded)
    assert all(torch.equal(found[name], tensor) for name, tensor in parameters.items())
