"""A checkpoint's model in Hugging Face format: configuration, tokenizer, and safetensors in files of bounded size.

One file's tensors are in memory at a time. The directory is complete or absent.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from services.inference.layers import ADAPTER_CONFIG
from services.runtime.durable import committed, is_of_full_disk
from services.trainer.backends.adapter import write_adapter
from services.trainer.checkpoint_reading import Parameters
from services.trainer.sharded import CheckpointUnreadable

MAX_FILE_BYTES = 5 * 10**9
INDEX_FILE = "model.safetensors.index.json"
_CONFIG_FILE = "config.json"
_WEIGHTS = (".safetensors", ".bin", ".index.json")
_OF_VALUES = "ForTokenClassification"


class CannotExport(Exception):
    """The directory is in use, or there is no room for it."""


@dataclass(frozen=True)
class Exported:
    """What was written: `tensors` of `size_bytes` in `dtype`, from the files of so many `ranks`."""

    ranks: int
    tensors: int
    size_bytes: int
    dtype: str


def export(
    source: Path,
    into: Path,
    dtype: torch.dtype | None = None,
    as_adapter: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Exported:
    """Write the model in `source`, a directory `actor` or `critic`, into a directory of its own.

    Args:
        dtype: of the floating-point tensors; None keeps each as it was trained.
        as_adapter: of a LoRA, write the adapter by PEFT's names; otherwise it is merged into the model.

    Raises:
        CheckpointUnreadable: `source` is no checkpoint, an interrupted or a damaged one, or has no adapter.
        CannotExport: `into` is in use, or there is no room for it.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise CannotExport(f"{into} is in use: name a directory that is not there yet")
    parameters = Parameters(source)
    if as_adapter and not parameters.has_adapter:
        raise CheckpointUnreadable(f"{source} has no adapter: all of the model was trained")
    _assert_room(parameters, into, dtype)
    with committed(into) as aside:
        try:
            written = (
                _write_adapter(parameters, aside, dtype)
                if as_adapter
                else _write(parameters, aside, dtype, max_file_bytes)
            )
        except Exception as error:
            if not is_of_full_disk(error, aside):
                raise
            raise CannotExport(f"{into}: no space is left on the disk; nothing is left behind") from error
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in written.values()})
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in written.values())
    return Exported(parameters.shards.ranks, len(written), size_bytes, ", ".join(dtypes))


def _write(
    parameters: Parameters, into: Path, dtype: torch.dtype | None, max_file_bytes: int
) -> dict[str, torch.Tensor]:
    """Returns the outlines of what was written."""
    config = _copy_surroundings(parameters, into, dtype)
    outlines = _outlines(parameters, dtype)
    if config.get("tie_word_embeddings"):
        outlines.pop("lm_head.weight", None)
    plan = split_torch_state_dict_into_shards(outlines, max_shard_size=max_file_bytes)
    for file, names in plan.filename_to_tensors.items():
        tensors = {name: parameters[name].to(outlines[name].dtype).clone().contiguous() for name in names}
        save_file(tensors, into / file, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (into / INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    return outlines


def _outlines(parameters: Parameters, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Tensors without contents."""
    found = {}
    for name in parameters:
        outline = parameters.outline(name)
        kept = dtype is None or not outline.dtype.is_floating_point
        found[name] = torch.empty(outline.shape, dtype=outline.dtype if kept else dtype, device="meta")
    return found


def _copy_surroundings(parameters: Parameters, into: Path, dtype: torch.dtype | None) -> dict[str, Any]:
    """Configuration, tokenizer, and code of the model's own; the configuration tells what was written.

    That of an adapter stays behind: beside a model that it is merged into, transformers would look for the adapter.
    """
    beside = parameters.shards.directory / "huggingface"
    if not (beside / _CONFIG_FILE).is_file():
        raise CheckpointUnreadable(f"{beside / _CONFIG_FILE} is not there: nothing says what model this is")
    for path in sorted(beside.iterdir()):
        if path.is_file() and path.name != ADAPTER_CONFIG and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, into / path.name)
    config: dict[str, Any] = json.loads((beside / _CONFIG_FILE).read_text(encoding="utf-8"))
    some = parameters.outline(next(iter(parameters)))
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype or some.dtype).removeprefix("torch.")
    if "score.weight" in parameters:
        config |= _of_values(config)
    (into / _CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return config


def _of_values(config: dict[str, Any]) -> dict[str, Any]:
    """A critic: one number per token, whatever the model was that it began from."""
    named = [name.replace("ForCausalLM", _OF_VALUES) for name in config.get("architectures") or []]
    return {"architectures": named, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def _write_adapter(parameters: Parameters, into: Path, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    from peft import LoraConfig

    adapter = {
        name: tensor.to(dtype or tensor.dtype).clone().contiguous() for name, tensor in parameters.adapter.items()
    }
    base = json.loads((parameters.shards.directory / "huggingface" / _CONFIG_FILE).read_text(encoding="utf-8"))
    lora = LoraConfig(
        r=int(str(parameters.lora["r"])),
        lora_alpha=int(str(parameters.lora["lora_alpha"])),
        target_modules=sorted({name.split(".")[-3] for name in adapter}),
        task_type=str(parameters.lora.get("task_type") or "CAUSAL_LM"),
        base_model_name_or_path=base.get("_name_or_path"),
    )
    write_adapter(into, adapter, lora.to_dict())  # type: ignore[no-untyped-call]
    return adapter


def _assert_room(parameters: Parameters, into: Path, dtype: torch.dtype | None) -> None:
    needed = sum(tensor.numel() * tensor.element_size() for tensor in _outlines(parameters, dtype).values())
    place = next(parent for parent in into.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise CannotExport(f"{into} needs {needed} bytes, and {free} are free: choose another place, or --dtype bf16")
