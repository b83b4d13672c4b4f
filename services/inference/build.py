"""The one place that chooses an engine."""

from services.config.tree import RunConfig
from services.inference.engine import Engine


def build_engine(config: RunConfig) -> Engine:
    """The engine of the rollout model. Heavy libraries are imported when it starts, not before."""
    model = config.rollout_model
    if model.engine_type == "fake":
        from services.inference.fake import FakeEngine

        return FakeEngine(**model.extra_engine_args)
    from services.inference.vllm_engine import VllmEngine, VllmSettings

    return VllmEngine(
        VllmSettings(
            model_path=model.model_path or config.model.model_path,
            dtype=model.dtype,
            max_model_len=model.max_model_len,
            tensor_parallel_size=model.tensor_parallel_size,
            gpu_memory_utilization=_memory_share(config),
            enforce_eager=model.enforce_eager,
            enable_prefix_caching=model.enable_prefix_caching,
            max_num_seqs=max(16, config.explorer.runner_per_model * config.repeat_times),
            seed=model.seed,
            trust_remote_code=model.trust_remote_code or config.model.trust_remote_code,
            extra=dict(model.extra_engine_args),
        )
    )


def _memory_share(config: RunConfig) -> float:
    """Explorer and evaluator of one launcher share a GPU: each engine takes half of what is allowed."""
    is_shared = config.cluster.gpu_per_node > 0 and bool(config.eval_tasksets) and config.mode in ("both", "explore")
    share = config.rollout_model.gpu_memory_utilization
    return share / 2 if is_shared else share
