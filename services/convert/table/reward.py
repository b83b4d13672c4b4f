"""Rows of `reward_model`, `reward` and `custom_reward_function`."""

import posixpath
from typing import Any

from services.convert.row import EVALUATION, NOTHING, PPO, RUNS, Backward, Row, Unfit, Values, Way, at_home
from services.convert.table.data import INPUT, files, whole

MODEL = "explorer.auxiliary_models[0]"
SECTIONS = "{reward_model,reward.reward_model}"
SWITCHES = ("reward_model.enable", "reward.reward_model.enable")
FUNCTION = "default_reward_fn_type"
BUFFERS = (
    "{reward_model,reward,reward.reward_manager,reward.reward_model}.{reward_kwargs,overlong_buffer}",
    "custom_reward_function.overlong_buffer",
)


def has_model(said: Values) -> bool:
    """Whether veRL asks a reward model."""
    return any(said.value(key) is True for key in SWITCHES)


def _of_model(name: str) -> Way:
    """A key of the reward model, which counts where it is enabled."""
    ours = f"{MODEL}.{name}"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {ours: at_home(value)} if has_model(said) and value is not None else {}

    return Way(forward, lambda key, mine: mine.value(ours, NOTHING) if _is_first(key) else NOTHING)


def _is_first(key: str) -> bool:
    """Of veRL's two spellings, the one that is written back."""
    return not key.startswith("reward.")


def _enabled() -> Way:
    def backward(key: str, mine: Values) -> Any:
        return True if _is_first(key) and mine.value(f"{MODEL}.model_path", NOTHING) is not NOTHING else NOTHING

    return Way(lambda key, value, said: {}, backward, "true → an auxiliary model")


def _reward_file() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {"plugin_dirs": [posixpath.dirname(str(at_home(value))) or "."]} if value else {}

    return Way(forward, told="the file's directory")


def _reward_name() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        where = key.rpartition(".")[0] + ".path"
        return {f"{INPUT}.{FUNCTION}": value} if value and said.value(where) else {}

    return Way(forward, lambda key, mine: NOTHING)


def _manager() -> Way:
    names = {"dapo": "math_dapo_reward", "naive": None, "prime": None, "batch": None, "limited": None}

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if value not in names:
            raise Unfit("has no counterpart: a taskset's workflow and default_reward_fn_type decide the reward")
        return {f"{INPUT}.{FUNCTION}": names[value]} if names[value] else {}

    def backward(key: str, mine: Values) -> Any:
        is_dapo = mine.value(f"{INPUT}.{FUNCTION}", None) == "math_dapo_reward"
        return "dapo" if is_dapo and key == "reward_model.reward_manager" else NOTHING

    return Way(forward, backward, "dapo → math_dapo_reward, naive → the workflow's own")


def _overlong(name: str) -> Way:
    """An argument of DAPO's penalty of long responses, for each taskset of training."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        section = key.rpartition(".")[0]
        if said.value(f"{section}.enable") is not True:
            return {}
        arguments = {name: value}
        if name == "enable_overlong_penalty":
            arguments["max_response_length"] = whole(said.value("data.max_response_length"), 512)
        number = len(files(said.value("data.train_files")))
        places = range(number)
        return {
            f"{INPUT}.tasksets[{place}].reward_fn_args.{argument}": each
            for place in places
            for argument, each in arguments.items()
        } | {f"{INPUT}.{FUNCTION}": "math_dapo_reward"}

    return Way(forward, _argument(name), "of each taskset, with math_dapo_reward")


def _argument(name: str) -> Backward:
    """An argument of the reward that all tasksets of training have in common."""
    return lambda key, mine: mine.agreed(f"{INPUT}.tasksets", f"reward_fn_args.{name}")


def _longest_response() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        raise Unfit("it is data.max_response_length")

    return Way(forward, _argument("max_response_length"))


def _overlong_rows() -> tuple[Row, ...]:
    """DAPO's overlong buffer, in the places where versions of veRL and its recipes have it."""
    places = "{reward_model.,reward.,reward.reward_manager.,custom_reward_function.,}{reward_kwargs.,}"
    sections = f"{places}{{overlong_buffer_cfg,overlong_buffer}}"
    names = {"enable": "enable_overlong_penalty", "len": "cache_length", "penalty_factor": "penalty_factor"}
    return (
        *(
            Row(f"{sections}.{theirs}", f"{INPUT}.tasksets[].reward_fn_args.{ours}", _overlong(ours))
            for theirs, ours in names.items()
        ),
        Row(f"{sections}.log", note="reward/format_score is always measured"),
        Row(
            "{reward_model.,reward.,}reward_kwargs.max_resp_len",
            f"{INPUT}.tasksets[].reward_fn_args.max_response_length",
            _longest_response(),
        ),
    )


REWARD: tuple[Row, ...] = (
    Row(
        f"{SECTIONS}.enable",
        "explorer.auxiliary_models[]",
        _enabled(),
        "reward_model_workflow asks it: the default where neither a workflow nor a reward is named",
        default=False,
        tells=lambda value, said: value is True,
        kinds=(PPO,),
    ),
    Row(
        "{reward_model.model.path,reward_model.model_path,reward.reward_model.model_path}",
        f"{MODEL}.model_path",
        _of_model("model_path"),
    ),
    Row(
        f"{SECTIONS}.{{rollout,inference}}.tensor_model_parallel_size",
        f"{MODEL}.tensor_parallel_size",
        _of_model("tensor_parallel_size"),
    ),
    Row(
        f"{SECTIONS}.{{rollout,inference}}.gpu_memory_utilization",
        f"{MODEL}.gpu_memory_utilization",
        _of_model("gpu_memory_utilization"),
    ),
    Row(
        f"{SECTIONS}.{{rollout,inference}}.prompt_length", f"{MODEL}.max_prompt_tokens", _of_model("max_prompt_tokens")
    ),
    Row(
        f"{SECTIONS}.{{rollout,inference}}.response_length",
        f"{MODEL}.max_response_tokens",
        _of_model("max_response_tokens"),
    ),
    Row(f"{SECTIONS}.{{rollout,inference}}.max_model_len", f"{MODEL}.max_model_len", _of_model("max_model_len")),
    Row(f"{SECTIONS}.{{rollout,inference}}.dtype", f"{MODEL}.dtype", _of_model("dtype")),
    Row(f"{SECTIONS}.{{rollout,inference}}.enforce_eager", f"{MODEL}.enforce_eager", _of_model("enforce_eager")),
    Row("reward_model.model.trust_remote_code", f"{MODEL}.trust_remote_code", _of_model("trust_remote_code")),
    Row(
        "{custom_reward_function,reward.custom_reward_function}.path",
        "plugin_dirs",
        _reward_file(),
        "the file has to be a plug-in that registers the reward under its name (docs/plugins.md)",
        kinds=(*RUNS, EVALUATION),
        tells=lambda value, said: bool(value),
    ),
    Row(
        "{custom_reward_function,reward.custom_reward_function}.name",
        f"{INPUT}.{FUNCTION}",
        _reward_name(),
        default="compute_score",
        kinds=(*RUNS, EVALUATION),
    ),
    *_overlong_rows(),
    Row(
        "{reward_model.reward_manager,reward_manager.name,reward.reward_manager.name,reward.reward_manager}",
        f"{INPUT}.{FUNCTION}",
        _manager(),
        default="naive",
    ),
    Row(
        "{custom_reward_function,reward.custom_reward_function}.*",
        note="arguments of a reward are reward_fn_args of a taskset",
        kinds=(*RUNS, EVALUATION),
    ),
    Row(
        f"{SECTIONS}.{{micro_batch_size,micro_batch_size_per_gpu,use_dynamic_bsz,forward_max_token_len_per_gpu,max_length}}",
        note="the reward model is an engine of its own, which batches what arrives",
    ),
    Row(
        f"{SECTIONS}.{{strategy,ulysses_sequence_parallel_size,param_offload,load_weight,nccl_timeout}}",
        note="the reward model is an engine of its own, and not sharded by FSDP",
    ),
    Row(f"{SECTIONS}.model*", note="the reward model is an engine of its own, and not sharded by FSDP"),
    Row(
        f"{SECTIONS}.{{rollout,inference}}.*",
        note="the reward model is a vLLM engine: explorer.auxiliary_models has its keys",
    ),
    Row(
        f"{SECTIONS}.{{enable_resource_pool,n_gpus_per_node,nnodes,num_workers}}",
        note="engine_num and tensor_parallel_size of the auxiliary model say how many GPUs it has",
    ),
    Row("reward.{num_workers,launch*}", note="rewards are computed where answers are sampled"),
    Row(
        "{sandbox_fusion*,reward.sandbox_fusion*,reward_model.sandbox_fusion*}",
        note="code is judged by the sandbox of code_reward",
    ),
    Row(
        "{reward_model,reward,reward_manager}*",
        note="a taskset's workflow and default_reward_fn_type decide the reward",
    ),
)
