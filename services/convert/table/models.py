"""Rows of the models, their FSDP engines and optimizers: what veRL's own trainer reads goes on under its own name."""

from typing import Any

from services.config.verl.keys import IDLE, MOVED, REFUSED, SECTIONS
from services.config.verl.tree import Said
from services.convert.row import NOTHING, Row, Values, Way, named, path, same, verbatim

REF = "actor_rollout_ref"
MODEL, ACTOR = f"{REF}.model", f"{REF}.actor"
LORA = "model.lora_configs[0]"
NOT_MEGATRON = "the trainer is FSDP: Megatron, veOmni, torchtitan and the like are not available"


def _of_adapter(name: str) -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        rank = said.value(f"{MODEL}.lora_rank")
        return {f"{LORA}.{name}": value} if isinstance(rank, int) and rank > 0 and value is not None else {}

    return Way(forward, lambda key, mine: mine.value(f"{LORA}.{name}", NOTHING), "where lora_rank is above 0")


def _targets() -> Way:
    way = _of_adapter("target_modules")

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        return dict(way.forward(key, text, said))

    def backward(key: str, mine: Values) -> Any:
        value = mine.value(f"{LORA}.target_modules", NOTHING)
        return value.split(",") if isinstance(value, str) and "," in value else value

    return Way(forward, backward, "a list → its names with commas")


def _strategy() -> Way:
    names = {"fsdp": "fsdp", "fsdp2": "fsdp2", "megatron": "fsdp2", "veomni": "fsdp2", "torchtitan": "fsdp2"}
    own = named("trainer.trainer_strategy", names)
    return Way(own.forward, own.backward, "fsdp, fsdp2; anything else → fsdp2")


def _hf_checkpoint() -> Way:
    """`hf_model` among what a checkpoint holds."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {"trainer.save_hf_checkpoint": "always"} if "hf_model" in (value or []) else {}

    def backward(key: str, mine: Values) -> Any:
        saves = mine.value("trainer.save_hf_checkpoint", NOTHING)
        return ["model", "optimizer", "extra", "hf_model"] if saves == "always" else NOTHING

    return Way(forward, backward, "with hf_model → always")


def is_handed_on(key: str) -> bool:
    """Whether `trainer.trainer_config` takes a key of veRL's as it is."""
    return Said(key, _read_as(key), None).fate in ("verl", "same", "idle")


def _read_as(key: str) -> str:
    """The place where veRL reads what older versions had elsewhere."""
    for before, after in MOVED.items():
        if key == before or key.startswith(f"{before}."):
            return _read_as(after + key.removeprefix(before))
    return key


MODELS: tuple[Row, ...] = (
    Row(f"{MODEL}.path", "model.model_path", path("model.model_path"), "", "~/models/deepseek-llm-7b-chat", True),
    Row("critic.model.path", "model.critic_model_path", path("model.critic_model_path")),
    Row(f"{MODEL}.trust_remote_code", "model.trust_remote_code", same("model.trust_remote_code"), "", False),
    Row(f"{MODEL}.custom_chat_template", "model.custom_chat_template", path("model.custom_chat_template")),
    Row(f"{MODEL}.{{lora_rank,lora.rank}}", f"{LORA}.lora_rank", _of_adapter("lora_rank"), "", 0),
    Row(f"{MODEL}.{{lora_alpha,lora.alpha}}", f"{LORA}.lora_alpha", _of_adapter("lora_alpha"), "", 16),
    Row(f"{MODEL}.target_modules", f"{LORA}.target_modules", _targets(), "", "all-linear"),
    Row(f"{MODEL}.exclude_modules", f"{LORA}.exclude_modules", _of_adapter("exclude_modules")),
    Row(f"{MODEL}.lora_adapter_path", f"{LORA}.path", path(f"{LORA}.path")),
    Row(f"{MODEL}.lora.*", note="Megatron's adapters are not available: lora_rank, lora_alpha and target_modules are"),
    Row(
        f"{ACTOR}.strategy",
        "trainer.trainer_strategy",
        _strategy(),
        NOT_MEGATRON,
        "fsdp",
        True,
        tells=lambda value, said: value not in ("fsdp", "fsdp2"),
    ),
    Row(
        "{model_engine,engine,actor@*,ref@*,critic@*,model@*,optim@*,engine@*,optim}",
        note="the trainer's engine is FSDP: trainer.trainer_strategy",
    ),
    Row(f"{ACTOR}.use_dynamic_bsz", "trainer.use_dynamic_bsz", same("trainer.use_dynamic_bsz"), "", False, True),
    Row(
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        "trainer.max_token_len_per_gpu",
        same("trainer.max_token_len_per_gpu"),
        "",
        16384,
    ),
    Row(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "trainer.ulysses_sequence_parallel_size",
        same("trainer.ulysses_sequence_parallel_size"),
        "",
        1,
    ),
    Row(
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
        "trainer.ulysses_sequence_parallel_size",
        Way(same("trainer.ulysses_sequence_parallel_size").forward),
    ),
    Row(f"{ACTOR}.optim.clip_grad", "trainer.grad_clip", same("trainer.grad_clip"), "", 1.0),
    Row(f"{ACTOR}.grad_clip", "trainer.grad_clip", Way(same("trainer.grad_clip").forward), "", 1.0),
    Row(
        f"{ACTOR}.checkpoint.{{save_contents,contents}}",
        "trainer.save_hf_checkpoint",
        _hf_checkpoint(),
        "a checkpoint always holds model, optimizer and random states",
    ),
    Row(
        f"{{{ACTOR},critic}}.checkpoint.*", note="a checkpoint holds all that a resumed run needs, and is loaded whole"
    ),
    Row(
        "*.ulysses_sequence_parallel_size",
        note="reference and critic have the policy's: trainer.ulysses_sequence_parallel_size",
    ),
    Row("critic.{use_dynamic_bsz,model.use_remove_padding}", "trainer.trainer_config", verbatim()),
    Row(
        "critic.{strategy,ppo_mini_batch_size,rollout_n,enable}",
        note="the critic goes with the policy: its strategy, batches and answers",
    ),
    Row(f"{REF}.{{actor,ref,hybrid}}.{{strategy,rollout_n}}", note="the reference goes with the policy"),
    Row(f"{REF}.hybrid_engine", note="explorers and the trainer are processes of their own"),
    Row(f"{REF}.nccl_timeout", note="torch decides"),
    Row("*.{megatron,veomni,torchtitan,automodel,mindspeed}*", note=NOT_MEGATRON),
    Row("*.{override_transformer_config,override_ddp_config}*", note=NOT_MEGATRON),
    Row("*.{fsdp_config,fsdp,model.fsdp_config}.grad_offload", note="gradients go with the parameters: param_offload"),
    Row("*.wrap_policy.transformer_layer_cls_to_wrap", "trainer.trainer_config", verbatim()),
)


_MEGATRONS = (
    "lr_decay_*,decay_type,lr_wsd_*,lr_warmup_init,lr_min,lr_start,min_lr,muon_*,use_checkpoint_*,weight_decay_incr_style,"
    "main_grads_dtype,exp_avg_*,use_precision_*,use_layer_wise_*,optimizer_cpu_offload,overlap_*,eps,name"
)

REST: tuple[Row, ...] = (
    Row("*.optim.override_optimizer_config*", "trainer.trainer_config", verbatim()),
    Row(
        f"*.optim.{{{_MEGATRONS}}}",
        note="of the optimizer of Megatron, torchtitan or automodel; that of FSDP has no such argument",
    ),
    Row("*.{profile*,profiler*,npu_profile*}", note="veRL's profilers are not available"),
    Row("*.{load_weight,router_replay*,gradient_checkpointing_kwargs*,mbridge_config*}", note=NOT_MEGATRON),
    Row("*.override_config.{model_config,moe_config}*", note=NOT_MEGATRON),
    Row("{actor_rollout_ref.ref,critic,actor_rollout_ref.actor}.model", note=NOT_MEGATRON),
    Row(f"{REF}.ref.{{optim*,param_offload}}", note="the reference has no optimizer, and waits in CPU memory"),
    Row("critic.{loss_agg_mode,loss_scale_factor}", note="the value loss is a mean over tokens"),
    Row("critic.model.trust_remote_code", "model.trust_remote_code", Way(same("model.trust_remote_code").forward)),
    Row("critic.optim.min_lr_factor", note="critic.optim.min_lr_ratio is that of FSDP"),
    Row("critic.optim.total_training_steps", note="the schedule is laid out for the steps of the run"),
    Row("critic.kl_ctrl*", note="algorithm.kl_ctrl has its place"),
    Row("critic.nccl_timeout", note="torch decides"),
    *(
        Row(f"{section}.*", "trainer.trainer_config", verbatim(), where=is_handed_on)
        for section in sorted(SECTIONS, reverse=True)
        if section != "trainer"
    ),
    *(
        Row(f"critic.{section}.*", "trainer.trainer_config", verbatim(), where=is_handed_on)
        for section in ("model.fsdp_config", "fsdp_config")
    ),
    *(Row(pattern, note=why) for pattern, why in {**REFUSED, **IDLE}.items() if not pattern.startswith("trainer.")),
)
