"""One rank of the trainer, inside a Ray actor: veRL's training worker, with weights written in Hugging Face layout."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import verl.utils.model
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from services.trainer.backends.adapter import adapter_off, write_adapter
from services.trainer.backends.restoring import seed, seed_of
from services.trainer.backends.verl_checkpoints import use_our_manager

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", ".h5", ".msgpack")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class FsdpWorker(TrainingWorker):  # type: ignore[misc]
    """veRL's worker. On the CPU it opens the process group itself: veRL would ask for gloo twice over."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        if get_device_name() == "cpu":
            _join_gloo()
            from services.trainer.backends.verl_platform import register_engines

            register_engines()
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        if config.model_type == "value_model":
            verl.utils.model.load_valuehead_model = _value_model
        use_our_manager(config.engine_config.seed)
        super().__init__(config)
        self.engine.disable_adapter = lambda: adapter_off(self.engine.module)
        seed(seed_of(self.engine_config.seed, torch.distributed.get_rank(), steps=0))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def write_weights(self, directory: str, dtype: str) -> None:
        """Gather every parameter, or those of the adapter alone, on rank 0, which writes safetensors of `dtype`."""
        has_adapter = self.model_config.lora_rank > 0
        parameters, adapter = self.engine.get_per_tensor_param(base_sync_done=has_adapter)
        is_writer = torch.distributed.get_rank() == 0
        gathered: dict[str, torch.Tensor] = {}
        for name, parameter in parameters:
            if is_writer:
                gathered[name] = parameter.detach().to("cpu", _DTYPES[dtype], copy=True).contiguous()
        if is_writer and adapter is not None:
            write_adapter(Path(directory), gathered, adapter)
        elif is_writer:
            self._write(Path(directory), gathered)
        torch.distributed.barrier()

    def _write(self, directory: Path, parameters: dict[str, torch.Tensor]) -> None:
        from huggingface_hub import save_torch_state_dict

        if getattr(self.model_config.hf_config, "tie_word_embeddings", False):
            parameters.pop("lm_head.weight", None)
        save_torch_state_dict(parameters, directory)
        for file in Path(self.model_config.local_path).iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES):
                shutil.copyfile(file, directory / file.name)


def _value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """A causal language model with one number per token in place of its head, which begins at random.

    In place of veRL's own loader, which knows no attention but flash-attention.
    """
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


def _join_gloo() -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )
