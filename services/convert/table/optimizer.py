"""Rows of `actor_rollout_ref.actor.optim`: the policy's optimizer and its schedule."""

from typing import Any

from services.convert.row import NOTHING, TRAINER_CONFIG, Row, Values, Way, named, same
from services.convert.table.data import BATCH, updates, whole

ACTOR = "actor_rollout_ref.actor"
OPTIMIZER = "algorithm.optimizer"


def _warmup() -> Way:
    """Steps of the schedule: veRL's schedule goes on once an iteration, ours at every update."""
    ours = "algorithm.optimizer.lr_warmup_steps"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {ours: value * updates(said) if isinstance(value, int) and value > 0 else value}

    def backward(key: str, mine: Values) -> Any:
        steps, interval = mine.value(ours, NOTHING), mine.value("synchronizer.sync_interval", 1)
        if not isinstance(steps, int) or steps <= 0 or not isinstance(interval, int):
            return steps
        return max(1, round(steps / interval))

    return Way(forward, backward, f"times {BATCH} / ppo_mini_batch_size")


def _lowest_rate() -> Way:
    ours = "algorithm.optimizer.min_lr_ratio"
    return Way(
        lambda key, value, said: {} if value is None else {ours: value},
        lambda key, mine: mine.value(ours, NOTHING),
    )


def _kind() -> Way:
    """The optimizer's class; one that `optimizer_type` does not name goes on under veRL's own key."""
    names = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
    ours = f"{OPTIMIZER}.optimizer_type"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        own = names.get(str(value).lower())
        return {ours: own} if own else {TRAINER_CONFIG + key: value}

    def backward(key: str, mine: Values) -> Any:
        return {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD"}.get(mine.value(ours, NOTHING), NOTHING)

    return Way(forward, backward, "AdamW, adam → adamw, SGD → sgd, any other below trainer.trainer_config")


OPTIMIZERS: tuple[Row, ...] = (
    Row(f"{ACTOR}.optim.optimizer", f"{OPTIMIZER}.optimizer_type", _kind(), "", "AdamW"),
    Row(f"{ACTOR}.optim.lr", f"{OPTIMIZER}.lr", same(f"{OPTIMIZER}.lr"), "", 1e-6),
    Row(
        f"{ACTOR}.optim.lr_warmup_steps_ratio",
        f"{OPTIMIZER}.lr_warmup_steps_ratio",
        same(f"{OPTIMIZER}.lr_warmup_steps_ratio"),
        "",
        0.0,
    ),
    Row(
        f"{ACTOR}.optim.lr_warmup_steps",
        f"{OPTIMIZER}.lr_warmup_steps",
        _warmup(),
        "counts updates of the policy here, and iterations in veRL: multiplied by the updates of an iteration",
        default=-1,
        tells=lambda value, said: whole(value, -1) > 0 and updates(said) > 1,
    ),
    Row(f"{ACTOR}.optim.weight_decay", f"{OPTIMIZER}.weight_decay", same(f"{OPTIMIZER}.weight_decay"), "", 0.01),
    Row(f"{ACTOR}.optim.betas", f"{OPTIMIZER}.betas", same(f"{OPTIMIZER}.betas")),
    Row(
        f"{ACTOR}.optim.{{lr_scheduler_type,warmup_style,lr_decay_style,lr_scheduler}}",
        f"{OPTIMIZER}.lr_scheduler_type",
        Way(
            named(f"{OPTIMIZER}.lr_scheduler_type", {"constant": "constant", "cosine": "cosine"}).forward,
            lambda key, mine: (
                mine.value(f"{OPTIMIZER}.lr_scheduler_type", NOTHING) if key.endswith("scheduler_type") else NOTHING
            ),
        ),
    ),
    Row(f"{ACTOR}.optim.{{min_lr_ratio,min_lr_factor}}", f"{OPTIMIZER}.min_lr_ratio", _lowest_rate()),
    Row(f"{ACTOR}.optim.num_cycles", f"{OPTIMIZER}.num_cycles", same(f"{OPTIMIZER}.num_cycles"), "", 0.5),
    Row(f"{ACTOR}.optim.total_training_steps", note="the schedule is laid out for the steps of the run"),
)
