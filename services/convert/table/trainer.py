"""Rows of `trainer`: how long, how often, where to, on how many machines."""

from typing import Any

from services.convert.row import (
    EVALUATION,
    NOTHING,
    PPO,
    RUNS,
    SFT,
    Owned,
    Row,
    Values,
    Way,
    at_home,
    named,
    same,
    verbatim,
)
from services.convert.table.data import ITERATIONS, updates, whole

MONITORS = ("wandb", "tensorboard", "mlflow", "swanlab")
ALL = (*RUNS, SFT)
KEPT = "max_actor_ckpt_to_keep,max_critic_ckpt_to_keep,remove_previous_ckpt_in_save,remove_previous_ckpt"
NEVER = 1_000_000
"""Steps that no run has: `eval_interval` of a run that is never evaluated on the way."""


def monitor_of(value: Any) -> str | None:
    """The first of veRL's loggers that is a monitor here; the console is always there."""
    return next((name for name in _loggers(value) if name in MONITORS), None)


def _loggers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _other_loggers(value: Any, said: Values) -> bool | str:
    others = [str(name) for name in _loggers(value) if name not in ("console", monitor_of(value))]
    return f"a run has one monitor, of {', '.join(MONITORS)}: without {', '.join(others)}" if others else False


def _monitor() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        name = monitor_of(value)
        return {"monitor.monitor_type": name} if name else {}

    def backward(key: str, mine: Values) -> Any:
        name = mine.value("monitor.monitor_type", NOTHING)
        return NOTHING if name is NOTHING else ["console", name]

    return Way(forward, backward, "the first that is no console")


def _interval(ours: str, never: int) -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {ours: value if whole(value, 1) > 0 else never}

    def backward(key: str, mine: Values) -> Any:
        value = mine.value(ours, NOTHING)
        return -1 if value == never else value

    return Way(forward, backward, f"-1 → {never}")


def _steps() -> Way:
    ours = "buffer.total_steps"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {} if value is None else {ours: value * updates(said) if isinstance(value, int) else value}

    def backward(key: str, mine: Values) -> Any:
        value, interval = mine.value(ours, NOTHING), mine.value("synchronizer.sync_interval", 1)
        return -(-value // interval) if isinstance(value, int) and isinstance(interval, int) else value

    return Way(forward, backward, "times data.train_batch_size / ppo_mini_batch_size")


def _directory() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        where, of_run = (
            str(at_home(value)),
            f"{said.value('trainer.project_name')}/{said.value('trainer.experiment_name')}",
        )
        if where.rstrip("/").endswith(f"/{of_run}"):
            return {"checkpoint_root_dir": where.rstrip("/").removesuffix(f"/{of_run}")}
        if where == "./checkpoints":
            return {"checkpoint_root_dir": where}
        return {"checkpoint_job_dir": where}

    def backward(key: str, mine: Values) -> Any:
        own = mine.value("checkpoint_job_dir", NOTHING)
        if own is not NOTHING:
            return own
        root = mine.value("checkpoint_root_dir", NOTHING)
        of_run = f"{mine.value('project', 'Trinity-RFT')}/{mine.value('name', 'rft')}"
        return NOTHING if root is NOTHING else f"{root}/{of_run}"

    return Way(
        forward, backward, "`<root>/<project>/<experiment>` → checkpoint_root_dir, any other → checkpoint_job_dir"
    )


def kept() -> Way:
    ours = "trainer.max_checkpoints_to_keep"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        number = 1 if value is True else value
        return {ours: number} if whole(number, 0) > 0 or isinstance(number, str) else {}

    def backward(key: str, mine: Values) -> Any:
        value = mine.value(ours, NOTHING)
        of_key = key.endswith(("max_actor_ckpt_to_keep", "max_ckpt_to_keep"))
        return value if of_key and value is not NOTHING and value > 0 else NOTHING

    return Way(forward, backward)


def _resumes() -> Way:
    way = named("continue_from_checkpoint", {"auto": True, "resume_path": True, "disable": False})

    def backward(key: str, mine: Owned) -> Any:
        return "resume_path" if mine.value("trainer.resume_from_path", "") else way.backward(key, mine)

    return Way(way.forward, backward, way.told)


def _resumed() -> Way:
    ours = "trainer.resume_from_path"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {ours: at_home(value)} if value and said.value("trainer.resume_mode") == "resume_path" else {}

    return Way(forward, lambda key, mine: mine.value(ours, "") or NOTHING, "with resume_mode=resume_path")


def _more_often(value: Any, said: Values) -> bool | str:
    """What an interval of iterations, taken as steps, means."""
    each = updates(said)
    if whole(value, -1) <= 0 or each == 1:
        return False
    return f"every {value} updates of the policy; veRL counts iterations of {each} updates: {value * each} is as rarely"


def _multiplied(value: Any, said: Values) -> bool | str:
    each = updates(said)
    if value is None or each == 1:
        return False
    return f"{value} iterations of {each} updates each: a step here is an update"


TRAINER: tuple[Row, ...] = (
    Row("trainer.project_name", "project", same("project"), "", "verl_examples", True, kinds=ALL),
    Row("trainer.experiment_name", "name", same("name"), "", "gsm8k", True, kinds=ALL),
    Row(
        "trainer.default_local_dir",
        "checkpoint_root_dir, checkpoint_job_dir",
        _directory(),
        "",
        "./checkpoints",
        True,
        True,
        ALL,
    ),
    Row("trainer.resume_mode", "continue_from_checkpoint", _resumes(), "", "auto", kinds=ALL),
    Row(
        "trainer.{resume_from_path,resume_path}",
        "trainer.resume_from_path",
        _resumed(),
        "the run begins at step 0 with what the checkpoint holds; veRL goes on counting its steps",
        kinds=ALL,
        tells=lambda value, said: said.value("trainer.resume_mode") == "resume_path",
    ),
    Row("trainer.nnodes", "cluster.node_num", same("cluster.node_num"), "", 1, True, kinds=ALL),
    Row("trainer.n_gpus_per_node", "cluster.gpu_per_node", same("cluster.gpu_per_node"), "", 8, True, kinds=ALL),
    Row("trainer.total_epochs", "buffer.total_epochs", same("buffer.total_epochs"), "", 30, True),
    Row(
        "trainer.total_training_steps",
        "buffer.total_steps",
        _steps(),
        f"{ITERATIONS}: multiplied by the updates of an iteration",
        tells=_multiplied,
    ),
    Row(
        "trainer.save_freq",
        "trainer.save_interval",
        _interval("trainer.save_interval", 0),
        f"{ITERATIONS}: multiply by data.train_batch_size / ppo_mini_batch_size to save as rarely",
        default=-1,
        tells=_more_often,
    ),
    Row(
        "trainer.test_freq",
        "explorer.eval_interval",
        _interval("explorer.eval_interval", NEVER),
        f"{ITERATIONS}: multiply by data.train_batch_size / ppo_mini_batch_size to evaluate as rarely",
        default=-1,
        is_written=True,
        tells=_more_often,
        kinds=(PPO,),
    ),
    Row(
        "trainer.val_before_train", "explorer.eval_on_startup", same("explorer.eval_on_startup"), "", True, kinds=(PPO,)
    ),
    Row(
        "trainer.val_only",
        "mode",
        Way(
            lambda key, value, said: {"mode": "bench"} if value else {},
            lambda key, mine: True if mine.value("mode", "both") == "bench" else NOTHING,
            "true → bench",
        ),
        "",
        False,
    ),
    Row(
        "trainer.logger",
        "monitor.monitor_type",
        _monitor(),
        default=["console", "wandb"],
        is_written=True,
        kinds=ALL,
        tells=_other_loggers,
    ),
    Row(
        "trainer.critic_warmup",
        "trainer.trainer_config.trainer.critic_warmup",
        verbatim(),
        "counts updates of the critic alone here; veRL counts iterations, and they are one fewer",
        0,
        tells=lambda value, said: whole(value, 0) > 0,
    ),
    Row("trainer.balance_batch", "trainer.balance_batch", same("trainer.balance_batch"), "", True),
    Row(
        f"trainer.{{{KEPT},max_ckpt_to_keep}}",
        "trainer.max_checkpoints_to_keep",
        kept(),
    ),
    Row(
        "trainer.{default_hdfs_dir,del_local_ckpt_after_load,checkpoint_callback_class}",
        note="checkpoints stay where they are written",
        kinds=ALL,
    ),
    Row(
        "trainer.{log_val_generations,val_generations_to_log_to_wandb,rollout_data_dir,validation_data_dir,log_train_generations}",
        note="every experience is in the stream: `trinity view` and `trinity export` show them",
        kinds=ALL,
    ),
    Row(
        "trainer.{ray_wait_register_center_timeout,esi_redundant_time,device,use_v1,v1*,use_legacy_worker_impl,tq*}",
        note="explorers and the trainer are processes of their own, under a launcher (docs/operations.md)",
        kinds=ALL,
    ),
    Row(
        "trainer.{profile*,npu_profile*,controller_nsight_options*,worker_nsight_options*,rollout_data*}",
        note="veRL's profilers are not available",
        kinds=ALL,
    ),
    Row(
        "trainer.{checkpoint*,runtime_env*,worker_process_setup_hook,actor_optim_name,seed,max_steps_duration}",
        note="a checkpoint holds all that a resumed run needs",
        kinds=ALL,
    ),
    Row(
        "{profile,global_profiler,ray_kwargs,ray_init,transfer_queue,skip,hydra,defaults,prometheus}*",
        note="of veRL's own program: Ray, its profilers, its queue",
        kinds=(*ALL, EVALUATION),
    ),
    Row(
        "distillation*",
        note="algorithm_type=on_policy_distill with an auxiliary model as the teacher (docs/algorithms.md)",
    ),
    Row(
        "{async_training,rollout,fault_manager,rollout_manager}.*",
        note="what is asynchronous is a matter of synchronizer.sync_style, sync_offset and max_staleness",
    ),
)
