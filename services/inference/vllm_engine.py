"""A vLLM engine in this process, with weights that change while requests are in flight.

A version is adopted by pausing the scheduler with its requests kept, dropping every cached key and value, loading, and
going on: the cache of tokens sampled earlier is computed anew, so that each later token has the log-prob that the new
weights give it in its whole context.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import structlog

from schemas.weights import WeightVersion
from services.inference.engine import Completion, EngineDied, EngineLoad, Heard, Sampling, Tokenizer
from services.inference.vllm_lora import LoraSettings, adapter_request, assert_kind, lora_arguments
from services.inference.vllm_process import launching
from services.inference.weights import WeightsUnusable

log = structlog.get_logger()

_EXTENSION = "services.inference.vllm_extension.WeightLoading"


@dataclass(frozen=True)
class VllmSettings:
    """What an engine is started with. `extra` goes to vLLM's `AsyncEngineArgs` as it is.

    An engine whose weights are `is_fixed` samples with those that it was started with, as version 0. `devices` are the
    GPUs that it may see, in the form of `CUDA_VISIBLE_DEVICES`; None leaves the process's own. With `lora` versions
    are adapters on the weights at `model_path`.
    """

    model_path: str
    dtype: str = "bfloat16"
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    max_num_seqs: int = 64
    seed: int = 0
    trust_remote_code: bool = False
    kv_cache_gib: int = 1
    cpu_threads: int | None = None
    is_fixed: bool = False
    devices: str | None = None
    lora: LoraSettings | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class VllmEngine:
    """`services.inference.engine.Engine` over vLLM's `AsyncLLM`."""

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._llm: Any = None
        self._tokenizer: Tokenizer | None = None
        self._weights: WeightVersion | None = None
        self._adapter: Any = None
        self._requests: set[str] = set()
        self._died = ""
        self._tokens_sampled = 0
        self._loading = asyncio.Lock()

    @property
    def weights(self) -> WeightVersion | None:
        return self._weights

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RuntimeError("the engine has not been started")
        return self._tokenizer

    async def start(self) -> None:
        """Load the model in a thread: the heartbeat goes on meanwhile, which may take a minute."""
        await asyncio.to_thread(self._start)
        if self._settings.is_fixed:
            lora = self._settings.lora
            if lora is not None and lora.path is not None:
                await self._put(lora.path)
            self._weights = WeightVersion()
            await self._llm.update_weight_version(str(self._weights.version))

    def _start(self) -> None:
        with launching(self._settings.devices, self._settings.kv_cache_gib, self._settings.cpu_threads):
            self._launch()

    def _launch(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(**_engine_arguments(self._settings))
        self._llm = AsyncLLM.from_engine_args(arguments)
        self._tokenizer = cast(Tokenizer, self._llm.get_tokenizer())
        log.info("engine_started", engine="vllm", model=self._settings.model_path, dtype=self._settings.dtype)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, heard: Heard | None = None) -> Completion:
        result = await self._finished(prompt_ids, _sampling_params(sampling, is_followed=heard is not None), heard)
        completion = _completion(result.outputs[0])
        self._tokens_sampled += len(completion.token_ids)
        return completion

    async def _finished(self, prompt_ids: Sequence[int], params: Any, heard: Heard | None = None) -> Any:
        """vLLM's answer to one request."""
        self._assert_alive()
        request_id = uuid.uuid4().hex
        self._requests.add(request_id)
        try:
            result = None
            async for output in self._llm.generate(
                {"prompt_token_ids": list(prompt_ids)},
                params,
                request_id=request_id,
                lora_request=self._adapter,
            ):
                result = output
                if heard is not None:
                    heard(output.outputs[0].token_ids, _logprobs(output.outputs[0]), output.outputs[0].text)
        except Exception as error:
            if self._llm.errored:
                raise EngineDied(str(error)) from error
            raise
        finally:
            self._requests.discard(request_id)
        self._assert_alive()
        if result is None or not result.finished:
            raise RuntimeError("the engine ended the request without an answer")
        return result

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """vLLM computes the log-probs of a prompt; one token more has to be sampled, and is thrown away."""
        tokens = [*prompt_ids, *response_ids]
        output = await self._finished(tokens, _scoring_params())
        return _given_logprobs(output.prompt_logprobs, tokens, len(prompt_ids))

    async def load(self, directory: str, weights: WeightVersion) -> None:
        """See the port. Where the load fails half way, nobody knows what the engine holds: it samples no more."""
        assert_kind(directory, self._settings.model_path, self._settings.lora)
        async with self._loading:
            self._assert_alive()
            await self._llm.pause_generation(mode="keep", clear_cache=True)
            try:
                await self._put(directory)
                await self._llm.update_weight_version(str(weights.version))
            except WeightsUnusable:
                await self._llm.resume_generation()
                raise
            except BaseException as error:
                await self._die(f"version {weights.version} was not loaded as a whole: {error!r}")
                if isinstance(error, Exception):
                    raise EngineDied(self._died) from error
                raise
            self._weights = weights
            await self._llm.resume_generation()

    async def _die(self, reason: str) -> None:
        """Requests in flight end at once, and are refused as all later ones are."""
        self._died = reason
        log.error("engine_died", reason=reason)
        with contextlib.suppress(Exception):  # of vLLM's core, which may be what has failed
            await self._llm.abort(list(self._requests))

    def _assert_alive(self) -> None:
        if self._died:
            raise EngineDied(self._died)

    async def _put(self, directory: str) -> None:
        """In the place of the present weights: whole ones, or another adapter on the same base.

        Raises:
            WeightsUnusable: they cannot take that place; nothing is changed.
        """
        lora = self._settings.lora
        if lora is None:
            await self._llm.collective_rpc("load_announced", args=(directory,))
        elif directory != self._settings.model_path:
            if self._adapter is None and self._requests:
                raise WeightsUnusable(
                    f"{len(self._requests)} requests in flight sample the base: they would go on with it"
                )
            await self._llm.add_lora(adapter_request(lora, directory, replaces=True))
            self._adapter = adapter_request(lora, directory)
        elif self._adapter is not None:
            raise WeightsUnusable(f"{directory} cannot take the place of an adapter: restart the engine")

    def load_now(self) -> EngineLoad:
        return EngineLoad(requests=len(self._requests), tokens_sampled=self._tokens_sampled)

    async def stop(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None


def _engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "max_num_seqs": settings.max_num_seqs,
        "seed": settings.seed,
        "trust_remote_code": settings.trust_remote_code,
        "worker_extension_cls": _EXTENSION,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        **lora_arguments(settings.lora),
    }
    return {**arguments, **settings.extra}


def _sampling_params(sampling: Sampling, is_followed: bool = False) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop) or None,
        include_stop_str_in_output=True,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
        logprobs=0,
        output_kind=RequestOutputKind.CUMULATIVE if is_followed else RequestOutputKind.FINAL_ONLY,
    )


def _scoring_params() -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        max_tokens=1,
        prompt_logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _given_logprobs(candidates: Any, tokens: Sequence[int], start: int) -> npt.NDArray[np.float32]:
    """Of `tokens` from place `start`, out of vLLM's candidates at each place of a prompt."""
    if candidates is None or len(candidates) != len(tokens):
        raise RuntimeError("the engine did not give the log-probs of every token")
    found = [candidates[place][tokens[place]].logprob for place in range(start, len(tokens))]
    return np.asarray(found, dtype=np.float32)


def _completion(output: Any) -> Completion:
    token_ids = np.asarray(output.token_ids, dtype=np.int32)
    return Completion(
        token_ids=token_ids,
        logprobs=np.asarray(_logprobs(output), dtype=np.float32),
        token_versions=_token_versions(output.weight_versions, len(token_ids)),
        text=output.text,
        is_truncated=output.finish_reason == "length",
    )


def _logprobs(output: Any) -> list[float]:
    """Of the sampled tokens, out of vLLM's candidates at each place."""
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    return [candidates[token].logprob for token, candidates in pairs]


def _token_versions(spans: Any, length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """One version per token, from vLLM's spans `[start, end)` of equally labelled tokens."""
    versions = np.full(length, -1, dtype=np.int32)
    for span in spans or ():
        versions[span.start : span.end] = int(span.version)
    if (versions < 0).any():
        raise RuntimeError("the engine did not say which weights sampled every token")
    return versions
