"""A checkpoint outside of a run: its parameters by Hugging Face's names, whatever ranks and adapters they lie in.

What the manifest lists is held against it before it is read. No Ray, no GPU and no process group is needed.
"""

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch

from services.trainer.checkpoints import Checkpoint
from services.trainer.sharded import FACTS_FILE, CheckpointUnreadable, Pieced, Shards

LORA_FILE = "lora_train_meta.json"
_WRAPPED = "base_model.model."
_BASE = ".base_layer."
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"


def load_fsdp_state_dict_from_verl_checkpoint(checkpoint_path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Parameters on the CPU, in the precision that they were trained in, for `model.load_state_dict`.

    Args:
        checkpoint_path: the directory `actor` or `critic` of a checkpoint, written by any number of ranks of FSDP1 or
            FSDP2. A LoRA adapter is merged into the parameters that it adapts.

    Raises:
        CheckpointUnreadable: it is no checkpoint, an interrupted one, or its files are damaged.
    """
    found = Parameters(Path(checkpoint_path))
    return {name: found[name] for name in found}


class Parameters(Mapping[str, torch.Tensor]):
    """The parameters in the directory of one model, each put together when it is asked for."""

    def __init__(self, directory: Path) -> None:
        _assert_sound(directory)
        self.shards = Shards(directory)
        self._pieces = self.shards.model()
        self._of_base = {_plain(name): name for name in self._pieces if ".lora_" not in name}
        if not self._of_base:
            raise CheckpointUnreadable(f"{directory} holds an adapter alone, without the model that it belongs to")
        strange = [name for name in self._pieces if ".lora_" in name and not name.endswith((_A, _B))]
        if strange:
            raise CheckpointUnreadable(f"{directory} has an adapter of a kind that is not known here: {strange[0]}")

    def __getitem__(self, name: str) -> torch.Tensor:
        written = self._of_base[name]
        whole, adapted = self._pieces[written].whole(), written.removesuffix(f"{_BASE}weight")
        if adapted + _A not in self._pieces:
            return whole
        down, up = (self._pieces[adapted + part].whole().float() for part in (_A, _B))
        if len(down) != int(str(self.lora["r"])):
            raise CheckpointUnreadable(f"{adapted} has an adapter of rank {len(down)}, not r={self.lora['r']}")
        return (whole.float() + self.lora_scale * (up @ down)).to(whole.dtype)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._of_base)

    def __len__(self) -> int:
        return len(self._of_base)

    def outline(self, name: str) -> Pieced:
        """Shape and precision, without reading."""
        return self._pieces[self._of_base[name]]

    @property
    def has_adapter(self) -> bool:
        return len(self._of_base) < len(self._pieces)

    @cached_property
    def adapter(self) -> dict[str, torch.Tensor]:
        """The adapter alone, by the names of PEFT's files."""
        names = [name for name in self._pieces if ".lora_" in name]
        return {name.replace(".default.", "."): self._pieces[name].whole() for name in names}

    @cached_property
    def lora(self) -> dict[str, object]:
        """Rank `r`, `lora_alpha` and `task_type`, as veRL has written them."""
        path = self.shards.directory / LORA_FILE
        if not path.is_file():
            raise CheckpointUnreadable(f"{path} is not there: nothing says by how much the adapter counts")
        said: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        return said

    @property
    def lora_scale(self) -> float:
        return float(str(self.lora["lora_alpha"])) / float(str(self.lora["r"]))


def _plain(name: str) -> str:
    """The parameter's name in the model without its adapter."""
    return name.removeprefix(_WRAPPED).replace(_BASE, ".")


def _assert_sound(directory: Path) -> None:
    """Every file that is going to be read is the one that was committed."""
    whole = directory.parent
    if whole.name.startswith("."):
        raise CheckpointUnreadable(f"{whole} is what an interrupted save has left, and no checkpoint")
    checkpoint = Checkpoint(0, whole)
    below = f"{directory.name}/"
    for part in (f"{below}model_", below + FACTS_FILE, below + LORA_FILE, f"{below}huggingface/"):
        damage = checkpoint.damage(is_thorough=True, below=part)
        if damage:
            raise CheckpointUnreadable(f"{whole} is damaged: {'; '.join(damage)}")
