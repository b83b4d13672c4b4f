"""A batch as veRL's engine takes it: jagged nested tensors, no padding between sequences."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.trainer.backends.port import Sequence


def pack(sequences: list[Sequence], ranks: int, options: dict[str, Any]) -> Any:
    """The tensor dictionary of one optimizer step.

    Ranks share a batch evenly, so copies that carry no loss fill it up to a multiple of `ranks`; the loss is
    normalised over the real sequences and tokens alone.
    """
    from verl.utils import tensordict_utils

    filled = sequences + [_silent(sequences[0])] * (-len(sequences) % ranks)
    tensors = {
        "input_ids": _jagged([sequence.tokens.astype(np.int64) for sequence in filled]),
        "position_ids": _jagged([np.arange(len(sequence.tokens)) for sequence in filled]),
        "loss_mask": _jagged([_whole_mask(sequence) for sequence in filled]),
        "prompts": _jagged([sequence.tokens[: sequence.prompt_length].astype(np.int64) for sequence in filled]),
        "responses": _jagged([sequence.tokens[sequence.prompt_length :].astype(np.int64) for sequence in filled]),
        "response_mask": _jagged([sequence.action_mask.astype(np.float32) for sequence in filled]),
        "old_log_probs": _jagged([sequence.old_logprobs for sequence in filled]),
        "advantages": _jagged([sequence.advantages for sequence in filled]),
        "temperature": torch.tensor([sequence.temperature for sequence in filled], dtype=torch.float32),
    }
    plain = {
        "mini_batch_size": len(filled),
        "epochs": 1,
        "global_batch_size": len(sequences),
        "use_fused_kernels": False,
        **options,
    }
    return tensordict_utils.get_tensordict(tensors, non_tensor_dict=plain)


def _silent(sequence: Sequence) -> Sequence:
    zeros = np.zeros_like(sequence.action_mask)
    return Sequence(
        sequence.tokens, sequence.prompt_length, zeros, sequence.old_logprobs, np.zeros_like(sequence.advantages)
    )


def _whole_mask(sequence: Sequence) -> npt.NDArray[np.float32]:
    prompt = np.zeros(sequence.prompt_length, dtype=np.float32)
    return np.concatenate([prompt, sequence.action_mask.astype(np.float32)])


def _jagged(arrays: list[npt.NDArray[Any]]) -> torch.Tensor:
    # an array from the bus is read-only, and torch wants its own
    return torch.nested.as_nested_tensor([torch.tensor(array) for array in arrays], layout=torch.jagged)
