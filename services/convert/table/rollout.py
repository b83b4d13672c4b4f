"""Rows of `actor_rollout_ref.rollout`: sampling, the engines, and evaluation."""

from typing import Any

from services.convert.row import NOTHING, Row, Values, Way, named, same, verbatim
from services.convert.table.data import INPUT, files, of_evaluation, whole

ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = "explorer.rollout_model"
VALIDATION = f"{ROLLOUT}.val_kwargs"


def _temperature() -> Way:
    """The last of several tasksets says it too, which shows where a taskset has a temperature of its own."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        number = len(files(said.value("data.train_files")))
        found = {f"{INPUT}.tasksets[{number - 1}].rollout_args.temperature": value} if number > 1 else {}
        return found | ({"model.temperature": value} if said.is_said(key) else {})

    def backward(key: str, mine: Values) -> Any:
        return mine.value("model.temperature", mine.value(f"{ENGINE}.temperature", NOTHING))

    return Way(forward, backward)


def _top_k() -> Way:
    return Way(
        lambda key, value, said: {"model.top_k": value if whole(value, 0) > 0 else -1},
        lambda key, mine: mine.value("model.top_k", NOTHING),
        "0 (of veRL's hf rollout) → -1",
    )


def _greedy_evaluation() -> Way:
    """veRL evaluates with temperature 0 unless it is told otherwise."""
    way = of_evaluation("rollout_args.temperature")

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        samples = said.value(f"{VALIDATION}.do_sample") or not said.is_said(f"{VALIDATION}.do_sample")
        return dict(way.forward(key, value if samples else 0, said))

    return Way(forward, way.backward, "0 where do_sample is false")


def _engine_rows(*names: str, default: Any = NOTHING) -> tuple[Row, ...]:
    return tuple(Row(f"{ROLLOUT}.{name}", f"{ENGINE}.{name}", same(f"{ENGINE}.{name}"), "", default) for name in names)


def _engine_argument(name: str) -> Row:
    ours = f"{ENGINE}.extra_engine_args.{name}"
    return Row(f"{ROLLOUT}.{name}", ours, same(ours))


def _extra() -> Way:
    """`engine_kwargs.vllm.X` → `extra_engine_args.X`."""
    section, ours = f"{ROLLOUT}.engine_kwargs.vllm.", f"{ENGINE}.extra_engine_args."
    return Way(
        lambda key, value, said: {} if value in (None, {}) else {ours + key.removeprefix(section): value},
        lambda key, mine: mine.value(ours + key.removeprefix(section), NOTHING),
        "each by its own name",
    )


ROLLOUTS: tuple[Row, ...] = (
    Row(f"{ROLLOUT}.temperature", "model.temperature", _temperature(), "", 1.0, True, True),
    Row(f"{ROLLOUT}.top_p", "model.top_p", same("model.top_p"), "", 1.0),
    Row(f"{ROLLOUT}.top_k", "model.top_k", _top_k(), "", -1),
    Row(
        f"{ROLLOUT}.do_sample",
        "model.temperature",
        Way(lambda key, value, said: {} if value else {"model.temperature": 0}, told="false → 0"),
        "",
        True,
    ),
    Row(
        f"{VALIDATION}.temperature",
        f"{INPUT}.eval_tasksets[].rollout_args.temperature",
        _greedy_evaluation(),
        "",
        0,
        True,
    ),
    Row(
        f"{VALIDATION}.top_p",
        f"{INPUT}.eval_tasksets[].rollout_args.top_p",
        of_evaluation("rollout_args.top_p"),
        "",
        1.0,
    ),
    Row(
        f"{VALIDATION}.top_k",
        f"{INPUT}.eval_tasksets[].rollout_args.top_k",
        of_evaluation("rollout_args.top_k"),
        "",
        -1,
    ),
    Row(f"{VALIDATION}.n", f"{INPUT}.eval_tasksets[].repeat_times", of_evaluation("repeat_times"), "", 1),
    Row(
        f"{VALIDATION}.do_sample",
        f"{INPUT}.eval_tasksets[].rollout_args.temperature",
        Way(
            lambda key, value, said: (
                {}
                if said.is_said(f"{VALIDATION}.temperature")
                else dict(of_evaluation("rollout_args.temperature").forward(key, 1.0 if value else 0, said))
            ),
            told="false → 0",
        ),
        default=False,
    ),
    Row(
        f"{ROLLOUT}.name",
        f"{ENGINE}.engine_type",
        Way(
            lambda key, value, said: {},
            lambda key, mine: (
                "vllm" if str(mine.value(f"{ENGINE}.engine_type", "vllm")).startswith("vllm") else NOTHING
            ),
            "vllm, whatever it is",
        ),
        "vLLM samples here, in place of sglang, trtllm or hf",
        default="vllm",
        tells=lambda value, said: value not in ("vllm", None),
    ),
    Row(
        f"{ROLLOUT}.tensor_model_parallel_size",
        f"{ENGINE}.tensor_parallel_size",
        same(f"{ENGINE}.tensor_parallel_size"),
        "",
        2,
        True,
    ),
    Row(
        f"{ROLLOUT}.pipeline_model_parallel_size",
        f"{ENGINE}.pipeline_parallel_size",
        same(f"{ENGINE}.pipeline_parallel_size"),
        "",
        1,
    ),
    *_engine_rows("data_parallel_size", default=1),
    Row(
        f"{ROLLOUT}.expert_parallel_size",
        f"{ENGINE}.enable_expert_parallel",
        Way(
            lambda key, value, said: {f"{ENGINE}.enable_expert_parallel": True} if whole(value) > 1 else {},
            told="above 1 → true",
        ),
    ),
    Row(
        f"{ROLLOUT}.gpu_memory_utilization",
        f"{ENGINE}.gpu_memory_utilization",
        same(f"{ENGINE}.gpu_memory_utilization"),
        "",
        0.5,
        True,
    ),
    *_engine_rows("dtype", default="bfloat16"),
    *_engine_rows("enforce_eager", default=False),
    *_engine_rows("enable_prefix_caching", "enable_chunked_prefill", default=True),
    *_engine_rows("ignore_eos", default=False),
    *_engine_rows("seed", default=42),
    Row(
        f"{ROLLOUT}.max_model_len",
        f"{ENGINE}.max_model_len",
        Way(
            lambda key, value, said: {} if value is None else {f"{ENGINE}.max_model_len": value},
            lambda key, mine: mine.value(f"{ENGINE}.max_model_len", NOTHING),
        ),
    ),
    _engine_argument("max_num_batched_tokens"),
    _engine_argument("max_num_seqs"),
    Row(f"{ROLLOUT}.engine_kwargs.vllm.*", f"{ENGINE}.extra_engine_args", _extra()),
    Row(
        f"{ROLLOUT}.quantization",
        f"{ENGINE}.extra_engine_args.quantization",
        same(f"{ENGINE}.extra_engine_args.quantization"),
    ),
    Row(f"{ROLLOUT}.quantization_config_file", note="vLLM reads it from the model's own configuration"),
    Row(f"{ROLLOUT}.engine_kwargs*", note="the engine is vLLM: arguments of sglang and TensorRT-LLM have no place"),
    Row(f"{ROLLOUT}.prompt_length", "model.max_prompt_tokens", Way(same("model.max_prompt_tokens").forward)),
    Row(f"{ROLLOUT}.response_length", "model.max_response_tokens", Way(same("model.max_response_tokens").forward)),
    Row(
        f"{ROLLOUT}.{{log_prob_micro_batch_size,log_prob_micro_batch_size_per_gpu}}",
        "trainer.trainer_config",
        verbatim(),
    ),
    Row(
        f"{ROLLOUT}.{{log_prob_use_dynamic_bsz,log_prob_max_token_len_per_gpu}}",
        note="log-probs are computed in the micro-batches of the trainer (use_dynamic_bsz, max_token_len_per_gpu)",
    ),
    Row(
        f"{ROLLOUT}.multi_turn.format",
        f"{ENGINE}.tool_call_parser",
        named(f"{ENGINE}.tool_call_parser", {"hermes": "hermes"}),
        default="hermes",
    ),
    Row(
        f"{ROLLOUT}.multi_turn.*",
        note="turns and tools belong to a workflow: set default_workflow_type, or write a plug-in (docs/workflows.md)",
    ),
    Row(
        f"{ROLLOUT}.{{mode,agent*}}",
        note="sampling is always asynchronous, and an agent loop is a workflow (docs/workflows.md)",
    ),
    Row(
        f"{ROLLOUT}.{{free_cache_engine,multi_stage_wake_up,load_format,layered_summon,nnodes,n_gpus_per_node}}",
        note="engines have GPUs of their own: nothing is freed for training, and announced weights are loaded",
    ),
    Row(
        f"{ROLLOUT}.{{checkpoint_engine*,update_weights_bucket_megabytes}}",
        note="weights travel by synchronizer.sync_method",
    ),
    Row(f"{ROLLOUT}.{{calculate_log_probs,logprobs_mode}}", note="every token carries the log-prob of its sampler"),
    Row(
        f"{ROLLOUT}.{{trace*,prometheus*,profiler*,profile*,disable_log_stats}}",
        note="see docs/operations.md for what is measured",
    ),
    Row(
        f"{ROLLOUT}.{{skip*,over_sample_rate}}",
        note="no answer is left out to save time; explorer.over_rollout goes on before the slowest",
    ),
    Row(f"{ROLLOUT}.enable_rollout_routing_replay", note="router replay is not available"),
    Row(
        f"{ROLLOUT}.{{full_determinism,scheduling_policy,cudagraph_capture_sizes,limit_images,skip_tokenizer_init}}",
        note="vLLM decides; explorer.rollout_model.extra_engine_args hands it an argument of its own",
    ),
    Row(
        f"{ROLLOUT}.{{mtp*,qat*,disaggregation*,router_config_path,moe_load_balance_metrics_interval}}",
        note="not available",
    ),
    Row(f"{ROLLOUT}.{{use_fire_sampling,layer_name_map*}}", note="of a removed engine of veRL's"),
)
