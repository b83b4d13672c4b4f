"""What runs inside vLLM's worker: loading announced weights so that *every* layer computes with them.

An adapter vLLM loads by itself; on the CPU its layers are ours.

A CPU engine prepacks the output head. A model that ties its embeddings keeps the old packed copy after vLLM's own
reload, and would sample from a mixture of two versions; so the head is tied and packed anew.
"""

from typing import Any

from services.inference.orphans import watch_owner

watch_owner()


class WeightLoading:
    """Mixed into the worker by vLLM (`worker_extension_cls`)."""

    model_runner: Any
    reload_weights: Any

    def load_announced(self, directory: str) -> None:
        """Load the safetensors files of `directory` over the present weights."""
        self.reload_weights(weights_path=directory)
        model = self.model_runner.model
        model = getattr(model, "module", model)
        if getattr(model.config, "tie_word_embeddings", False) and _is_cpu():
            head = model.lm_head
            head.weight = model.model.embed_tokens.weight
            head.quant_method.process_weights_after_loading(head)


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


if _is_cpu():
    from services.inference.vllm_cpu_lora import use_one_adapter

    use_one_adapter()
