"""What is computed of whole logits in a forward pass of veRL's engine, by its hook for distillation.

With `distillation_use_topk` the engine hands each micro-batch's logits, divided by the temperature, to the loss
function before it calls it as a loss, and packs what comes back like log-probs: on every device, in every layout.
"""

from typing import Any

import torch

from services.trainer.algorithms.entropy_clipped import nec


class LogitMeasures:
    """Stands in for the loss function in a forward pass that computes `nec` at each token, and no loss."""

    def __call__(
        self, model_output: Any = None, data: Any = None, dp_group: object = None, student_logits: Any = None
    ) -> Any:
        """veRL's two signatures: of `student_logits` `1 x N x V` numbers `1 x N` by name, and of outputs a loss."""
        if student_logits is not None:
            return {"nec": nec(student_logits.squeeze(0)).unsqueeze(0)}
        return torch.zeros(()), {}
