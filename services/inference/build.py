"""The one place that chooses engines: of the rollout model, and of the auxiliary models."""

import os
from typing import Any

from services.config.allocation import auxiliary_memory_share, memory_share
from services.config.tree import RunConfig
from services.inference.architectures import is_classifier
from services.inference.auxiliary import Auxiliaries, AuxiliaryModel, Defaults, EngineModel
from services.inference.config import InferenceModelConfig, ModelConfig
from services.inference.engine import Engine
from services.inference.vllm_lora import DEFAULT_NAME, LoraSettings

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def build_engine(config: RunConfig, is_fixed: bool = False) -> Engine:
    """The engine of the rollout model. Heavy libraries are imported when it starts, not before.

    One that `is_fixed` samples with the weights of the configured model, and waits for no announcement.
    """
    model = config.rollout_model
    if model.engine_type == "fake":
        return _fake(model)
    from services.inference.vllm_engine import VllmEngine, VllmSettings

    return VllmEngine(
        VllmSettings(
            model_path=model.model_path or config.model.model_path,
            dtype=model.dtype,
            max_model_len=model.max_model_len,
            tensor_parallel_size=model.tensor_parallel_size,
            gpu_memory_utilization=memory_share(config),
            enforce_eager=model.enforce_eager,
            enable_prefix_caching=model.enable_prefix_caching,
            max_num_seqs=max(16, config.explorer.runner_per_model * config.repeat_times),
            seed=model.seed,
            trust_remote_code=model.trust_remote_code or config.model.trust_remote_code,
            is_fixed=is_fixed,
            devices=_own_devices(config, 0, model.gpus_per_engine),
            lora=_lora(config.model),
            extra=dict(model.extra_engine_args),
        )
    )


def _lora(model: ModelConfig) -> LoraSettings | None:
    lora = model.lora
    if lora is None:
        return None
    return LoraSettings(
        rank=lora.lora_rank,
        name=lora.name or DEFAULT_NAME,
        dtype=lora.lora_dtype,
        is_fully_sharded=model.fully_sharded_loras,
        path=lora.path,
    )


def build_auxiliaries(config: RunConfig) -> Auxiliaries:
    """The models of `explorer.auxiliary_models`. Engines start when first asked, or by `start`.

    Raises:
        AuxiliaryFailed: an external model without a name or an address.
    """
    config = _with_runners(config)
    first = config.rollout_model.gpus_per_engine
    models: list[AuxiliaryModel] = []
    for model in config.auxiliary_models:
        models.append(_auxiliary(config, model, first))
        first += model.gpus_per_engine
    return Auxiliaries(models)


def _with_runners(config: RunConfig) -> RunConfig:
    """The kinds of those models whose configuration was not here to be read when the run's was."""
    models = [
        model.model_copy(update={"runner": "pooling"})
        if model.runner == "auto" and model.is_local and is_classifier(model.model_path or "", may_download=True)
        else model
        for model in config.explorer.auxiliary_models
    ]
    explorer = config.explorer.model_copy(update={"auxiliary_models": models})
    return config.model_copy(update={"explorer": explorer})


def _auxiliary(config: RunConfig, model: InferenceModelConfig, first_device: int) -> AuxiliaryModel:
    name = model.known_as
    defaults = defaults_of(model)
    if model.external_model_config.enable:
        from services.inference.external import ExternalModel

        return ExternalModel.configured(model.external_model_config, defaults, name, model.runner == "pooling")
    if model.engine_type == "fake":
        return _fake_auxiliary(name, model, defaults)
    from services.inference.vllm_engine import VllmEngine, VllmSettings

    settings = VllmSettings(
        model_path=model.model_path or "",
        dtype=model.dtype,
        max_model_len=model.max_model_len,
        tensor_parallel_size=model.tensor_parallel_size,
        gpu_memory_utilization=auxiliary_memory_share(config, model),
        enforce_eager=model.enforce_eager,
        enable_prefix_caching=model.enable_prefix_caching,
        max_num_seqs=max(16, config.explorer.runner_per_model * config.repeat_times),
        seed=model.seed,
        trust_remote_code=model.trust_remote_code,
        is_fixed=True,
        devices=_own_devices(config, first_device, model.gpus_per_engine),
        extra=dict(model.extra_engine_args),
    )
    if model.runner != "pooling":
        return EngineModel(name, VllmEngine(settings), defaults)
    from services.inference.reward_model import ClassifierModel
    from services.inference.vllm_classifier import VllmClassifier

    return ClassifierModel(name, VllmClassifier(settings), defaults)


def _fake_auxiliary(name: str, model: InferenceModelConfig, defaults: Defaults) -> AuxiliaryModel:
    if model.runner != "pooling":
        return EngineModel(name, _fake(model), defaults)
    from services.inference.fake_classifier import FakeClassifier
    from services.inference.reward_model import ClassifierModel

    return ClassifierModel(name, FakeClassifier(**model.extra_engine_args), defaults)


def defaults_of(model: InferenceModelConfig) -> Defaults:
    """How an auxiliary model is asked."""
    given: dict[str, Any] = {
        "temperature": model.temperature,
        "top_p": model.top_p,
        "top_k": model.top_k,
        "max_tokens": model.max_response_tokens,
        "max_model_len": model.max_model_len,
        "repetition_penalty": model.repetition_penalty,
        "chat_template": model.chat_template,
        "enable_thinking": model.enable_thinking,
    }
    return Defaults(**{key: value for key, value in given.items() if value is not None})


def _fake(model: InferenceModelConfig) -> Engine:
    from services.inference.fake import FakeEngine

    return FakeEngine(**model.extra_engine_args)


def _own_devices(config: RunConfig, first: int, number: int) -> str | None:
    """Of the GPUs that this process may see, those from place `first`; None where it has to share none out."""
    visible = os.environ.get(_VISIBLE)
    if not config.auxiliary_models or config.cluster.gpu_per_node == 0 or visible is None:
        return None
    return ",".join(visible.split(",")[first : first + number])
