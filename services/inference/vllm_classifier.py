"""A reward model on a vLLM engine in this process: vLLM's pooling runner, without the activation over its scores."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, cast

import structlog

from services.inference.engine import EngineDied, Tokenizer
from services.inference.vllm_engine import VllmSettings
from services.inference.vllm_process import launching

log = structlog.get_logger(__name__)

_EXTENSION = "services.inference.vllm_extension.WeightLoading"  # of which only the watch over its owner is used


class VllmClassifier:
    """`services.inference.reward_model.Classifier` over vLLM's `AsyncLLM`, which batches those who ask at once."""

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._llm: Any = None
        self._tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RuntimeError("the engine has not been started")
        return self._tokenizer

    async def start(self) -> None:
        """Load the model in a thread: the heartbeat goes on meanwhile."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        settings = self._settings
        with launching(settings.devices, settings.kv_cache_gib, settings.cpu_threads):
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**_engine_arguments(settings)))
        self._tokenizer = cast(Tokenizer, self._llm.get_tokenizer())
        log.info("engine_started", engine="vllm pooling", model=settings.model_path, dtype=settings.dtype)

    async def logits(self, token_ids: Sequence[int]) -> list[float]:
        from vllm import PoolingParams

        params = PoolingParams(task="classify", use_activation=False)
        result = None
        try:
            async for output in self._llm.encode({"prompt_token_ids": list(token_ids)}, params, uuid.uuid4().hex):
                result = output
        except Exception as error:
            if self._llm.errored:
                raise EngineDied(str(error)) from error
            raise
        if result is None or not result.finished:
            raise RuntimeError("the engine ended the request without an answer")
        return [float(logit) for logit in result.outputs.data]

    async def stop(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None


def _engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "runner": "pooling",
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enforce_eager": settings.enforce_eager,
        "max_num_seqs": settings.max_num_seqs,
        "trust_remote_code": settings.trust_remote_code,
        "worker_extension_cls": _EXTENSION,
        "disable_log_stats": True,
    }
    return {**arguments, **settings.extra}
