"""Rows of what is no reinforcement learning: sft_trainer.yaml, generation.yaml and evaluation.yaml."""

from typing import Any

from services.convert.row import (
    EVALUATION,
    GENERATION,
    NOTHING,
    SFT,
    TRAINER_CONFIG,
    Row,
    Spoken,
    Unfit,
    Values,
    Way,
    named,
    path,
    same,
)
from services.convert.table.data import CHECK, INPUT, file_of, files, placed, whole
from services.convert.table.models import is_handed_on
from services.convert.table.trainer import KEPT, kept

BUFFER = "buffer.trainer_input.experience_buffer"
LORA = "model.lora_configs[0]"
TASKSET = f"{INPUT}.eval_tasksets[0]"


def _rows() -> Way:
    """The file of an SFT run; of several, the first."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        given = files(value)
        if not given:
            return {}
        name, where, split = placed(given[0])
        return {
            f"{BUFFER}.name": name,
            f"{BUFFER}.storage_type": "file",
            f"{BUFFER}.path": where,
            f"{BUFFER}.split": split,
        }

    def backward(key: str, mine: Values) -> Any:
        where = mine.value(f"{BUFFER}.path", NOTHING)
        return NOTHING if where is NOTHING else file_of(str(where), str(mine.value(f"{BUFFER}.split", "train")))

    return Way(forward, backward, "`<dir>/<split>.parquet` → name, directory and split")


def _layout(name: str, kind: str) -> Way:
    """A column of the rows, and with it how they are laid out."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if value is None:
            return {}
        plain = value[0] if isinstance(value, list) and value else value
        return {f"{BUFFER}.format.prompt_type": kind, f"{BUFFER}.format.{name}": plain}

    return Way(forward, lambda key, mine: mine.value(f"{BUFFER}.format.{name}", NOTHING))


def _column(name: str) -> Way:
    """A column of texts, of which veRL 0.9.1 has no more."""
    return Way(_layout(name, "plaintext").forward)


def _fields() -> Way:
    """A text within a column: rows are read by whole columns."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        ours = key.rpartition(".")[2].replace("_dict_keys", "_key")
        within = ".".join((str(said.value(f"data.{ours}")), *files(value)))
        raise Unfit(
            f"rows are read by whole columns: write {within} as a column of texts, and name it in format.{ours}"
        )

    return Way(forward)


def _of_adapter(name: str) -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        rank = said.value("model.lora_rank")
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        return {f"{LORA}.{name}": text} if isinstance(rank, int) and rank > 0 else {}

    return Way(forward, lambda key, mine: mine.value(f"{LORA}.{name}", NOTHING), "where model.lora_rank is above 0")


def _of_engine(ours: str) -> Way:
    """Offloading, below `trainer.trainer_config`."""
    return same(f"trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.{ours}")


def _sft(verl: str, ours: str, way: Way | None = None, note: str = "", **more: Any) -> Row:
    return Row(verl, ours, way or same(ours), note, kinds=(SFT,), **more)


def _not_sft(verl: str, note: str) -> Row:
    return Row(verl, note=note, kinds=(SFT,))


def _below(section: str, place: str) -> Row:
    """The other keys of a section, which the trainer takes below `trainer.trainer_config`."""

    def where(key: str) -> bool:
        return is_handed_on(place + key.removeprefix(section))

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {f"{TRAINER_CONFIG}{place}{key.removeprefix(section)}": value}

    way = Way(forward, told=f"below {place}")
    return Row(f"{section}.*", "trainer.trainer_config", way, kinds=(SFT,), where=where)


def _ratio() -> Way:
    return same("algorithm.optimizer.lr_warmup_steps_ratio")


ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
MODEL = "actor_rollout_ref.model"

SUPERVISED: tuple[Row, ...] = (
    _sft(
        "data.train_files",
        f"{BUFFER}.path",
        _rows(),
        "one file: of several the first",
        default="~/data/gsm8k/train.parquet",
        is_written=True,
        tells=lambda value, said: isinstance(value, list) and len(value) > 1,
    ),
    _sft(
        "data.messages_key",
        f"{BUFFER}.format.messages_key",
        _layout("messages_key", "messages"),
        default="messages",
        is_written=True,
    ),
    _sft(
        "data.multiturn.messages_key", f"{BUFFER}.format.messages_key", Way(_layout("messages_key", "messages").forward)
    ),
    _sft(
        "{data.tools_key,data.multiturn.tools_key}",
        f"{BUFFER}.format.tools_key",
        Way(_layout("tools_key", "messages").forward),
    ),
    _sft("data.prompt_key", f"{BUFFER}.format.prompt_key", _column("prompt_key")),
    _sft("data.response_key", f"{BUFFER}.format.response_key", _column("response_key")),
    _sft(
        "data.{prompt_dict_keys,response_dict_keys}",
        f"{BUFFER}.format",
        _fields(),
        "a column is one text, not a mapping of texts",
    ),
    _sft("data.train_batch_size", "buffer.train_batch_size", default=256, is_written=True),
    _sft(
        "data.max_length",
        "model.max_model_len",
        note="a row that is longer is left out, and counted",
        default=1024,
        is_written=True,
        tells=lambda value, said: True,
    ),
    _sft("data.{max_token_len_per_gpu}", "trainer.max_token_len_per_gpu", same("trainer.max_token_len_per_gpu")),
    _sft("data.use_dynamic_bsz", "trainer.use_dynamic_bsz", default=True),
    _sft(
        "{data.micro_batch_size_per_gpu,data.micro_batch_size}",
        "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        Way(
            lambda key, value, said: {f"{TRAINER_CONFIG}{ACTOR}.ppo_micro_batch_size_per_gpu": value} if value else {},
            same(f"{TRAINER_CONFIG}{ACTOR}.ppo_micro_batch_size_per_gpu").backward,
        ),
    ),
    _not_sft(
        "data.{val_files,val_batch_size,val_max_samples}",
        "an SFT run has no loss of validation: evaluate its model in a second stage (docs/offline.md)",
    ),
    _not_sft(
        "data.{truncation,pad_mode,balance_dp_token,chat_template,custom_cls*,use_shm,num_workers,"
        "ignore_input_ids_mismatch,train_max_samples,apply_chat_template_kwargs*,multiturn*,enable_thinking*,image_key,video_key,return_raw*,shuffle,seed,"
        "trust_remote_code}",
        "rows are read as format says, and those that are too long are left out",
    ),
    _sft("{model.path,model.partial_pretrain}", "model.model_path", path("model.model_path")),
    _sft("model.trust_remote_code", "model.trust_remote_code"),
    _sft("model.custom_chat_template", "model.custom_chat_template"),
    _sft("model.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing"),
    _sft("{model.use_remove_padding,use_remove_padding}", "trainer.use_remove_padding"),
    _sft("model.lora_rank", f"{LORA}.lora_rank", _of_adapter("lora_rank"), default=0),
    _sft("model.lora_alpha", f"{LORA}.lora_alpha", _of_adapter("lora_alpha"), default=16),
    _sft("model.target_modules", f"{LORA}.target_modules", _of_adapter("target_modules")),
    _sft(
        "{engine.strategy,model.strategy}",
        "trainer.trainer_strategy",
        named("trainer.trainer_strategy", {"fsdp": "fsdp", "fsdp2": "fsdp2"}),
    ),
    _sft(
        "{engine.model_dtype,model.fsdp_config.model_dtype}",
        f"trainer.trainer_config.{FSDP}.model_dtype",
        _of_engine("model_dtype"),
    ),
    _sft(
        "{engine.param_offload,model.fsdp_config.offload_params,model.fsdp_config.cpu_offload}",
        f"trainer.trainer_config.{FSDP}.param_offload",
        _of_engine("param_offload"),
    ),
    _sft(
        "engine.optimizer_offload", f"trainer.trainer_config.{FSDP}.optimizer_offload", _of_engine("optimizer_offload")
    ),
    _sft(
        "{engine.ulysses_sequence_parallel_size,ulysses_sequence_parallel_size}",
        "trainer.ulysses_sequence_parallel_size",
        same("trainer.ulysses_sequence_parallel_size"),
        default=1,
    ),
    _sft("model.use_liger", "trainer.trainer_config", same(f"trainer.trainer_config.{MODEL}.use_liger")),
    _not_sft(
        "{engine,optim,model,model_engine,engine@*,optim@*,model@*}", "the engine is FSDP: trainer.trainer_strategy"
    ),
    _below("engine", FSDP),
    _below("model.fsdp_config", FSDP),
    _below("model", MODEL),
    _not_sft("{engine,model}.*", "of an engine that is not FSDP's, or decided by the trainer"),
    _sft("optim.lr", "algorithm.optimizer.lr", default=1e-5, is_written=True),
    _sft("optim.weight_decay", "algorithm.optimizer.weight_decay", default=0.01),
    _sft("optim.betas", "algorithm.optimizer.betas"),
    _sft(
        "{optim.lr_warmup_steps_ratio,optim.warmup_steps_ratio}", "algorithm.optimizer.lr_warmup_steps_ratio", _ratio()
    ),
    _sft("optim.lr_warmup_steps", "algorithm.optimizer.lr_warmup_steps"),
    _sft(
        "{optim.lr_scheduler_type,optim.lr_scheduler}",
        "algorithm.optimizer.lr_scheduler_type",
        named("algorithm.optimizer.lr_scheduler_type", {"cosine": "cosine", "constant": "constant"}),
    ),
    _sft("optim.min_lr_ratio", "algorithm.optimizer.min_lr_ratio"),
    _sft("{optim.clip_grad,optim.grad_clip}", "trainer.grad_clip"),
    _sft(
        "optim.{optimizer,optimizer_impl,override_optimizer_config}",
        "trainer.trainer_config",
        Way(
            lambda key, value, said: (
                {} if value is None else {f"trainer.trainer_config.actor_rollout_ref.actor.{key}": value}
            )
        ),
    ),
    _below("optim", f"{ACTOR}.optim"),
    _not_sft("optim.*", "of an optimizer of Megatron, torchtitan or automodel; that of FSDP has no such argument"),
    _sft("trainer.total_epochs", "buffer.total_epochs", default=4, is_written=True),
    _sft(
        "trainer.total_training_steps",
        "buffer.total_steps",
        Way(
            lambda key, value, said: {} if value is None else {"buffer.total_steps": value},
            lambda key, mine: mine.value("buffer.total_steps", NOTHING),
        ),
    ),
    _sft(
        "trainer.save_freq",
        "trainer.save_interval",
        Way(
            lambda key, value, said: {"trainer.save_interval": max(0, whole(value, 0))},
            lambda key, mine: mine.value("trainer.save_interval", NOTHING) or -1,
        ),
        "counts steps; after each epoch (`after_each_epoch`) has no counterpart",
        default=-1,
        tells=lambda value, said: not isinstance(value, int),
    ),
    _sft("trainer.balance_batch", "trainer.balance_batch"),
    _sft(f"trainer.{{max_ckpt_to_keep,{KEPT}}}", "trainer.max_checkpoints_to_keep", kept()),
    _not_sft(
        "trainer.{test_freq,val_before_train,seed,nproc_per_node,profile_interval}",
        "an SFT run has no loss of validation",
    ),
    _not_sft(
        "{checkpoint,profiler,global_profiler,actor_rollout_ref,critic}*",
        "a checkpoint holds all that a resumed run needs",
    ),
)


def _generated() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        given = files(value)
        if not given:
            return {}
        name, where, split = placed(given[0])
        return {
            f"{TASKSET}.name": name,
            f"{TASKSET}.storage_type": "file",
            f"{TASKSET}.path": where,
            f"{TASKSET}.split": split,
            f"{TASKSET}.format.prompt_key": said.value("data.prompt_key", "prompt"),
            f"{TASKSET}.format.response_key": Spoken("answer", CHECK),
        }

    return Way(forward, told="the data to answer are an evaluation taskset, and mode is bench")


_BENCH = "answers are scored too, and told as metrics; no file of responses is written"

GENERATED: tuple[Row, ...] = (
    Row(
        "{data.path,data.train_files}",
        f"{TASKSET}.path",
        _generated(),
        _BENCH,
        kinds=(GENERATION,),
        tells=lambda value, said: True,
    ),
    Row("data.{n_samples}", f"{TASKSET}.repeat_times", same(f"{TASKSET}.repeat_times"), kinds=(GENERATION,)),
    Row("actor_rollout_ref.rollout.n", f"{TASKSET}.repeat_times", same(f"{TASKSET}.repeat_times"), kinds=(GENERATION,)),
    Row(
        "data.prompt_key",
        f"{TASKSET}.format.prompt_key",
        same(f"{TASKSET}.format.prompt_key"),
        kinds=(GENERATION,),
        default="prompt",
    ),
    Row("data.{output_path,batch_size}", note=_BENCH, kinds=(GENERATION,)),
    Row("model.path", "model.model_path", path("model.model_path"), kinds=(GENERATION,)),
    Row(
        "rollout.{temperature,top_p,top_k}",
        "model",
        Way(lambda key, value, said: {f"model.{key.rpartition('.')[2]}": value}),
        kinds=(GENERATION,),
    ),
    Row("rollout.prompt_length", "model.max_prompt_tokens", same("model.max_prompt_tokens"), kinds=(GENERATION,)),
    Row("rollout.response_length", "model.max_response_tokens", same("model.max_response_tokens"), kinds=(GENERATION,)),
    Row(
        "rollout.tensor_model_parallel_size",
        "explorer.rollout_model.tensor_parallel_size",
        same("explorer.rollout_model.tensor_parallel_size"),
        kinds=(GENERATION,),
    ),
    Row(
        "rollout.{gpu_memory_utilization,dtype,enforce_eager,max_model_len}",
        "explorer.rollout_model",
        Way(
            lambda key, value, said: (
                {} if value is None else {f"explorer.rollout_model.{key.rpartition('.')[2]}": value}
            )
        ),
        kinds=(GENERATION,),
    ),
    Row("rollout.n", f"{TASKSET}.repeat_times", same(f"{TASKSET}.repeat_times"), kinds=(GENERATION,)),
    Row("{rollout,actor,model}.*", note="of veRL's own engine, which generates and nothing more", kinds=(GENERATION,)),
)

EVALUATED: tuple[Row, ...] = (
    Row(
        "data.path",
        f"{TASKSET}.path",
        _generated(),
        "veRL scores answers that stand in the file; here a model answers anew: name it in model.model_path",
        kinds=(EVALUATION,),
        tells=lambda value, said: True,
        default="/tmp/math_Qwen2-7B-Instruct.parquet",
        is_written=True,
    ),
    Row(
        "data.prompt_key",
        f"{TASKSET}.format.prompt_key",
        same(f"{TASKSET}.format.prompt_key"),
        kinds=(EVALUATION,),
        default="prompt",
    ),
    Row("data.response_key", note="the model answers anew", kinds=(EVALUATION,)),
    Row(
        "data.data_source_key",
        note="metrics are told for each taskset: one for each source of the data",
        kinds=(EVALUATION,),
    ),
    Row(
        "data.reward_model_key",
        f"{TASKSET}.format.response_key",
        same(f"{TASKSET}.format.response_key"),
        "a column of true answers; veRL's holds them below ground_truth",
        kinds=(EVALUATION,),
        tells=lambda value, said: True,
    ),
)
