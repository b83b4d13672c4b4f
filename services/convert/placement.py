"""What veRL has no words for: which GPUs sample and which train, and how far sampling runs ahead.

The values are those of the alignment guide's two examples, and the rules the simplest that give them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.convert.row import EVALUATION, GENERATION, PPO, RUNS, SFT
from services.convert.said import Said
from services.convert.table.data import INPUT, updates, whole
from services.convert.table.reward import MODEL, has_model

Mine = Mapping[str, Any]
SHARE = 4
ENGINE = "explorer.rollout_model"
ANSWERED = (GENERATION, EVALUATION)


def _nothing(said: Said, mine: Mine) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Rule:
    """Values that follow from the whole launch: our key, the value, and what it comes from."""

    ours: str
    told: str
    values: Callable[[Said, Mine], Iterator[tuple[str, Any, str]]]
    sentences: Callable[[Said, Mine], Iterator[str]] = _nothing
    kinds: tuple[str, ...] = (PPO,)


def gpus_of(mine: Mine) -> int:
    """All GPUs of the run; what only the environment knows counts as veRL's default."""
    return max(1, whole(mine.get("cluster.node_num"), 1)) * whole(mine.get("cluster.gpu_per_node"), 8)


def engine_gpus(mine: Mine) -> int:
    """GPUs of one rollout engine."""
    sizes = (whole(mine.get(f"{ENGINE}.{name}_parallel_size"), 1) for name in ("tensor", "data", "pipeline"))
    product = 1
    for size in sizes:
        product *= max(1, size)
    return product


def _engines(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    total, size = gpus_of(mine), whole(mine.get(f"{ENGINE}.tensor_parallel_size"), 1)
    of_model = _model_gpus(said, mine)
    room = max(1, total - of_model - 1)
    fitting = size
    while fitting > 1 and engine_gpus({**mine, f"{ENGINE}.tensor_parallel_size": fitting}) > max(1, room):
        fitting //= 2
    if fitting != size:
        told = f"{size} in veRL, which takes turns on {total} GPUs"
        yield f"{ENGINE}.tensor_parallel_size", fitting, told
    one = engine_gpus({**mine, f"{ENGINE}.tensor_parallel_size": fitting})
    if said.kind == PPO:
        told = f"a quarter of {total} GPUs samples, the others train"
        yield f"{ENGINE}.engine_num", max(1, total // SHARE // one), told
    else:
        yield f"{ENGINE}.engine_num", max(1, total // one), f"all of {total} GPUs answer"


def _model_gpus(said: Said, mine: Mine) -> int:
    if not has_model(said):
        return 0
    size = whole(mine.get(f"{MODEL}.tensor_parallel_size"), 1)
    return max(1, gpus_of(mine) // SHARE // size) * size


def _engines_differ(said: Said, mine: Mine) -> Iterator[str]:
    total = gpus_of(mine)
    if said.kind == PPO:
        yield (
            f"engine_num: veRL samples and trains by turns on all {total} GPUs; here both go on at once, each on GPUs "
            "of its own"
        )
    if total < 2 and said.kind == PPO:
        yield "cluster.gpu_per_node=1: sampling and training need a GPU each: use 2 GPUs or more"


def _model_engines(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    if not has_model(said):
        return
    size = whole(mine.get(f"{MODEL}.tensor_parallel_size"), 1)
    total = gpus_of(mine)
    number = max(1, total // SHARE // size)
    yield f"{MODEL}.engine_num", number, f"a quarter of {total} GPUs serves the reward model"
    yield f"{MODEL}.tensor_parallel_size", size, "reward model"


def _asking(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    if has_model(said) and f"{INPUT}.default_reward_fn_type" in mine:
        yield f"{INPUT}.default_workflow_type", "reward_model_workflow", "the reward model is asked beside the reward"


def _pace(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    yield "synchronizer.sync_style", "fixed", "veRL's loop has a fixed pace"
    yield "synchronizer.sync_offset", 1, "as the alignment guide's examples; 0 waits for every update, as veRL does"
    yield "synchronizer.sync_timeout", 1200, "as the alignment guide's examples"


def _pace_differs(said: Said, mine: Mine) -> Iterator[str]:
    size, mini = whole(said.value("data.train_batch_size"), 1024), whole(mine.get("buffer.batch_size"), 256)
    yield (
        "sync_offset=1: a batch is sampled while the one before it trains, so the weights that sample it are one "
        "update older than in veRL; --on-policy writes 0"
    )
    if size % mini:
        yield f"data.train_batch_size={size} is no multiple of ppo_mini_batch_size={mini}: {updates(said)} updates each"


def _adaptive(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    """An adaptive coefficient has a target."""
    if said.value("algorithm.kl_ctrl.type") == "adaptive" and said.value("algorithm.use_kl_in_reward"):
        for name in ("target_kl", "horizon"):
            key = f"algorithm.kl_penalty_fn_args.{name}"
            if key not in mine:
                theirs = f"algorithm.kl_ctrl.{name}"
                yield key, said.value(theirs), f"veRL's default of {theirs}"


def _clips(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    """veRL clips every loss at 0.2 unless it is told otherwise; ours have defaults of their own."""
    if mine.get("algorithm.policy_loss_fn") not in ("gspo", "cispo"):
        return
    for side in ("low", "high"):
        key = f"algorithm.policy_loss_fn_args.clip_range_{side}"
        if key not in mine:
            theirs = f"actor_rollout_ref.actor.clip_ratio_{side}"
            yield key, said.value(theirs), f"veRL's default of {theirs}"


def _aggregates(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    if mine.get("algorithm.policy_loss_fn") == "gspo" and "algorithm.loss_agg_mode" not in mine:
        yield "algorithm.loss_agg_mode", "token-mean", "veRL's default of actor_rollout_ref.actor.loss_agg_mode"


def _lowest_rate(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    if mine.get("algorithm.optimizer.lr_scheduler_type") == "cosine" and "algorithm.optimizer.min_lr_ratio" not in mine:
        yield "algorithm.optimizer.min_lr_ratio", 0.0, "veRL's default of optim.min_lr_ratio"


def _rows(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    yield "mode", "train", "rows of data alone"
    yield "algorithm.algorithm_type", "sft", "sft_trainer"


def _bench(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    yield "mode", "bench", "answers, and trains nothing"
    if "model.model_path" not in mine:
        yield "model.model_path", "???", "the model that answers"


def _bus(said: Said, mine: Mine) -> Iterator[tuple[str, Any, str]]:
    if whole(mine.get("cluster.node_num"), 1) > 1:
        yield "bus.url", "${oc.env:TRINITY_BUS_URL,nats://localhost:4222}", "the bus on which all nodes meet"


def _bus_differs(said: Said, mine: Mine) -> Iterator[str]:
    if whole(mine.get("cluster.node_num"), 1) > 1:
        yield "bus.url: the nodes meet on a bus: start one by `trinity bus`, and give its address by TRINITY_BUS_URL"


RULES: tuple[Rule, ...] = (
    Rule("mode, algorithm.algorithm_type", "train and sft for an SFT run", _rows, kinds=(SFT,)),
    Rule("mode", "bench where veRL generates or evaluates", _bench, kinds=ANSWERED),
    Rule(f"{MODEL}.engine_num", f"GPUs // {SHARE} // tensor_parallel_size, at least 1", _model_engines, kinds=RUNS),
    Rule(f"{INPUT}.default_workflow_type", "reward_model_workflow with a reward model and a reward", _asking),
    Rule(
        f"{ENGINE}.engine_num",
        f"GPUs // {SHARE} // tensor_parallel_size, at least 1: a quarter of the GPUs samples; an engine without "
        "room beside the trainer is halved",
        _engines,
        _engines_differ,
        RUNS,
    ),
    Rule(
        "synchronizer.sync_style, sync_offset, sync_timeout",
        "fixed, 1 (0 with --on-policy), 1200",
        _pace,
        _pace_differs,
    ),
    Rule("bus.url", "where there are several nodes", _bus, _bus_differs, (PPO, SFT, *ANSWERED)),
    Rule("algorithm.kl_penalty_fn_args", "target_kl and horizon where the coefficient is adaptive", _adaptive),
    Rule("algorithm.policy_loss_fn_args", "clip_range_low and _high of gspo and cispo: 0.2", _clips),
    Rule("algorithm.loss_agg_mode", "token-mean for gspo", _aggregates),
    Rule("algorithm.optimizer.min_lr_ratio", "0 for a cosine", _lowest_rate, kinds=(PPO, SFT)),
)
