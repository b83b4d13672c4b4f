"""Rows of `algorithm` and of the losses of `actor_rollout_ref.actor`."""

from typing import Any

from services.config.algorithms.parts import POLICY_LOSSES
from services.config.rollout_correction import RolloutCorrection
from services.config.spelling import nearest
from services.convert.row import NOTHING, Row, Unfit, Values, Way, named, same
from services.convert.table.data import whole

ACTOR = "actor_rollout_ref.actor"
ADVANTAGE = "algorithm.adv_estimator"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"

ADVANTAGES: dict[str, str] = {
    "gae": "ppo",
    "grpo": "grpo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforceplusplus",
}
"""veRL's estimators and our advantage functions."""

TWINS: dict[str, str] = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
"""Other implementations of the same estimator."""

NEAREST: dict[str, tuple[str, dict[str, Any]]] = {
    "reinforce_plus_plus_baseline": ("grpo", {"std_cal_level": "batch"}),
    "grpo_passk": ("grpo", {}),
    "gpg": ("grpo", {"std_normalize": False}),
    "opo": ("rloo", {}),
    "gdpo": ("grpo", {}),
    "optimal_token_baseline": ("grpo", {}),
    "tir_optimal_token_baseline": ("grpo", {}),
}
"""Estimators without a counterpart, and what comes nearest."""

LOSSES: dict[str, str] = {
    "vanilla": "ppo",
    "gspo": "gspo",
    "sapo": "sapo",
    "cispo": "cispo",
    "dppo_tv": "dppo_tv",
    "gpg": "reinforce",
}
ALGORITHM_TYPES = {"gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "dppo_tv": "dppo_tv"}
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "k3"}
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def advantage_of(said: Values) -> str:
    """Our advantage function for veRL's estimator, the nearest where there is none."""
    name = str(said.value(ADVANTAGE))
    return ADVANTAGES.get(name) or TWINS.get(name) or NEAREST.get(name, ("grpo", {}))[0]


def loss_of(said: Values) -> str:
    """Our policy loss for veRL's."""
    return LOSSES.get(str(said.value(LOSS_MODE)), "ppo")


def algorithm_type_of(said: Values) -> str:
    """The algorithm type that has this advantage and this loss, or most of them."""
    advantage = advantage_of(said)
    return advantage if advantage == "ppo" else ALGORITHM_TYPES.get(loss_of(said), advantage)


def _advantage() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        ours = advantage_of(said)
        found: dict[str, Any] = {"algorithm.algorithm_type": algorithm_type_of(said), "algorithm.advantage_fn": ours}
        extra = NEAREST.get(str(value), ("", {}))[1]
        return found | {f"algorithm.advantage_fn_args.{name}": each for name, each in extra.items()}

    def backward(key: str, mine: Values) -> Any:
        own = mine.value("algorithm.advantage_fn", NOTHING)
        return next((theirs for theirs, ours in ADVANTAGES.items() if ours == own), NOTHING)

    told = ", ".join(f"{theirs} → {ours}" for theirs, ours in {**ADVANTAGES, **TWINS}.items() if theirs != ours)
    return Way(forward, backward, told)


def _has_no_twin(value: Any, said: Values) -> bool | str:
    known = (*ADVANTAGES, *TWINS, *NEAREST)
    if value in known:
        return value in NEAREST
    meant = nearest(str(value), known)
    advice = f"did you mean {meant}?" if meant else f"known here are {', '.join(known)}"
    return f"no estimator of veRL's; {advice} {advantage_of(said)} stands in its place"


def _argument_of_advantage(name: str, *advantages: str) -> Way:
    ours = f"algorithm.advantage_fn_args.{name}"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if advantage_of(said) not in advantages:
            raise Unfit(f"is not read by advantage_fn={advantage_of(said)}")
        return {ours: value}

    return Way(forward, lambda key, mine: mine.value(ours, NOTHING))


def _argument_of_loss(*names: str) -> Way:
    """An argument of the policy loss, by the first of the names that the loss knows."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        loss = loss_of(said)
        known = [name for name in names if name in POLICY_LOSSES[loss].arguments.model_fields]
        if not known:
            raise Unfit(f"is not read by policy_loss_fn={loss}")
        return {f"algorithm.policy_loss_fn_args.{known[0]}": value}

    def backward(key: str, mine: Values) -> Any:
        found = (mine.value(f"algorithm.policy_loss_fn_args.{name}", NOTHING) for name in names)
        return next((value for value in found if value is not NOTHING), NOTHING)

    return Way(forward, backward)


def _both_sides() -> Way:
    """`clip_ratio`, where a loss may know its two sides alone."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        fields = POLICY_LOSSES[loss_of(said)].arguments.model_fields
        if "clip_range" in fields:
            return {"algorithm.policy_loss_fn_args.clip_range": value}
        sides = [(side, f"clip_range_{side}") for side in ("low", "high") if f"clip_range_{side}" in fields]
        if not sides:
            raise Unfit(f"is not read by policy_loss_fn={loss_of(said)}")
        return {
            f"algorithm.policy_loss_fn_args.{name}": value
            for side, name in sides
            if not said.is_said(f"{ACTOR}.clip_ratio_{side}")
        }

    return Way(forward, lambda key, mine: mine.value("algorithm.policy_loss_fn_args.clip_range", NOTHING))


def _kl_name(value: Any) -> str:
    plain = str(value).removesuffix("+")
    if plain not in KL:
        raise Unfit(f"has no counterpart; those with one: {', '.join(KL)}")
    return KL[plain]


def _uses_kl_loss() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if not value:
            return {"algorithm.kl_loss_fn": "none"}
        return {"algorithm.kl_loss_fn": _kl_name(said.value(f"{ACTOR}.kl_loss_type"))}

    def backward(key: str, mine: Values) -> Any:
        name = mine.value("algorithm.kl_loss_fn", NOTHING)
        return NOTHING if name is NOTHING else name != "none"

    return Way(forward, backward, "false → none, true → the estimator of kl_loss_type")


def _kl(ours: str, switch: str) -> Way:
    """The name of a KL estimator, which counts where `switch` is on."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if not said.value(switch):
            return {}
        return {ours: _kl_name(value)}

    def backward(key: str, mine: Values) -> Any:
        own = mine.value(ours, NOTHING)
        return next((theirs for theirs in ("k1", "k2", "k3", "low_var_kl", "abs") if KL[theirs] == own), NOTHING)

    told = ", ".join(f"{theirs} → {own}" for theirs, own in KL.items() if theirs != own)
    return Way(forward, backward, told)


def _uses_kl_in_reward() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if not value:
            return {"algorithm.kl_penalty_fn": "none"}
        return {"algorithm.kl_penalty_fn": _kl_name(said.value("algorithm.kl_penalty"))}

    def backward(key: str, mine: Values) -> Any:
        name = mine.value("algorithm.kl_penalty_fn", NOTHING)
        return NOTHING if name is NOTHING else name != "none"

    return Way(forward, backward, "false → none, true → the estimator of kl_penalty")


def _of_adaptive(name: str) -> Way:
    ours = f"algorithm.kl_penalty_fn_args.{name}"
    return Way(
        lambda key, value, said: {ours: value} if said.value("algorithm.kl_ctrl.type") == "adaptive" else {},
        lambda key, mine: mine.value(ours, NOTHING),
        "with kl_ctrl.type=adaptive",
    )


def _token_level() -> Way:
    modes = {True: "token-mean", False: "seq-mean-token-mean"}
    return named("algorithm.loss_agg_mode", modes)


def _aggregation() -> Way:
    return named("algorithm.loss_agg_mode", {mode: mode for mode in AGGREGATIONS})


def _filters_groups() -> Way:
    ours = "algorithm.advantage_fn_args.std_threshold"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if not value:
            return {}
        if advantage_of(said) != "grpo":
            raise Unfit(f"is not read by advantage_fn={advantage_of(said)}")
        return {ours: 0.0}

    def backward(key: str, mine: Values) -> Any:
        return True if mine.value(ours, NOTHING) is not NOTHING else NOTHING

    return Way(forward, backward, "true → 0: groups whose rewards are all alike are left out")


def _refills() -> Way:
    ours = "data_processor.experience_pipeline.refill_batches"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        return {ours: value} if said.value("algorithm.filter_groups.enable") and whole(value, 0) > 0 else {}

    return Way(forward, lambda key, mine: mine.value(ours, NOTHING))


def _correction_rows() -> tuple[Row, ...]:
    section = "algorithm.rollout_correction"
    return tuple(
        Row(
            f"{{algorithm,{ACTOR}}}.rollout_correction.{name}",
            f"{section}.{name}",
            Way(
                lambda key, value, said, ours=f"{section}.{name}": {} if value is None else {ours: value},  # type: ignore[misc]
                lambda key, mine, ours=f"{section}.{name}": (  # type: ignore[misc]
                    mine.value(ours, NOTHING) if key.startswith("algorithm.") else NOTHING
                ),
            ),
        )
        for name in RolloutCorrection.model_fields
    )


ALGORITHM: tuple[Row, ...] = (
    Row(
        ADVANTAGE,
        "algorithm.algorithm_type, algorithm.advantage_fn",
        _advantage(),
        "veRL's estimator has no counterpart: the nearest stands in its place",
        default="gae",
        is_written=True,
        always=True,
        tells=_has_no_twin,
    ),
    Row("actor_rollout_ref.rollout.n", "algorithm.repeat_times", same("algorithm.repeat_times"), "", 1, True, True),
    Row(
        "algorithm.gamma",
        "algorithm.advantage_fn_args.gamma",
        _argument_of_advantage("gamma", "ppo", "reinforceplusplus"),
        "",
        1.0,
    ),
    Row("algorithm.lam", "algorithm.advantage_fn_args.lam", _argument_of_advantage("lam", "ppo"), "", 1.0),
    Row(
        "algorithm.norm_adv_by_std_in_grpo",
        "algorithm.advantage_fn_args.std_normalize",
        _argument_of_advantage("std_normalize", "grpo"),
        default=True,
    ),
    Row("algorithm.use_kl_in_reward", "algorithm.kl_penalty_fn", _uses_kl_in_reward(), "", False),
    Row(
        "algorithm.kl_penalty",
        "algorithm.kl_penalty_fn",
        _kl("algorithm.kl_penalty_fn", "algorithm.use_kl_in_reward"),
        "",
        "kl",
    ),
    Row(
        "algorithm.kl_ctrl.kl_coef",
        "algorithm.kl_penalty_fn_args.kl_coef",
        same("algorithm.kl_penalty_fn_args.kl_coef"),
        "",
        0.001,
    ),
    Row(
        "algorithm.kl_ctrl.type",
        "algorithm.kl_penalty_fn_args.adaptive",
        named("algorithm.kl_penalty_fn_args.adaptive", {"fixed": False, "adaptive": True}),
        default="fixed",
    ),
    Row("algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty_fn_args.target_kl", _of_adaptive("target_kl"), "", 0.1),
    Row("algorithm.kl_ctrl.horizon", "algorithm.kl_penalty_fn_args.horizon", _of_adaptive("horizon"), "", 10000),
    *_correction_rows(),
    Row(
        "{algorithm,actor_rollout_ref.actor}.rollout_correction.use_policy_gradient",
        "algorithm.rollout_correction.loss_type",
        named("algorithm.rollout_correction.loss_type", {True: "reinforce", False: "ppo_clip"}),
    ),
    Row(
        "algorithm.filter_groups.enable",
        "algorithm.advantage_fn_args.std_threshold",
        _filters_groups(),
        "groups are told by the spread of their rewards, whatever the metric; further tasks take their place",
        default=False,
        tells=lambda value, said: bool(value),
    ),
    Row(
        "algorithm.filter_groups.max_num_gen_batches",
        "data_processor.experience_pipeline.refill_batches",
        _refills(),
        "",
        0,
    ),
    Row("algorithm.{filter_groups,dynamic_filter}.*", note="groups are told by the spread of their rewards"),
    Row("algorithm.{use_pf_ppo,pf_ppo*}", note="experiences are not drawn anew by their rewards"),
    Row("algorithm.{gdpo*,grpo_passk*}", note="the estimator has no counterpart"),
    Row(
        LOSS_MODE,
        "algorithm.policy_loss_fn",
        named("algorithm.policy_loss_fn", LOSSES),
        "gspo and cispo clip at 0.2 in veRL where nothing is said, which is written",
        default="vanilla",
    ),
    Row(f"{ACTOR}.clip_ratio", "algorithm.policy_loss_fn_args.clip_range", _both_sides(), "", 0.2),
    Row(
        f"{ACTOR}.clip_ratio_low",
        "algorithm.policy_loss_fn_args.clip_range_low",
        _argument_of_loss("clip_range_low", "mask_low"),
        "",
        0.2,
    ),
    Row(
        f"{ACTOR}.clip_ratio_high",
        "algorithm.policy_loss_fn_args.clip_range_high",
        _argument_of_loss("clip_range_high", "mask_high"),
        "",
        0.2,
    ),
    Row(
        f"{ACTOR}.clip_ratio_c",
        "algorithm.policy_loss_fn_args.clip_ratio_c",
        _argument_of_loss("clip_ratio_c"),
        "",
        3.0,
    ),
    Row(
        f"{ACTOR}.{{tau_pos,policy_loss.tau_pos}}",
        "algorithm.policy_loss_fn_args.tau_pos",
        _argument_of_loss("tau_pos"),
    ),
    Row(
        f"{ACTOR}.{{tau_neg,policy_loss.tau_neg}}",
        "algorithm.policy_loss_fn_args.tau_neg",
        _argument_of_loss("tau_neg"),
    ),
    Row(
        f"{ACTOR}.policy_loss.*",
        note="clip_cov, kl_cov, geo_mean and dro have no counterpart among policy_loss_fn",
    ),
    Row(f"{ACTOR}.loss_agg_mode", "algorithm.loss_agg_mode", _aggregation(), "", "token-mean"),
    Row(
        f"{ACTOR}.use_token_level_loss",
        "algorithm.loss_agg_mode",
        Way(_token_level().forward, told="true → token-mean, false → seq-mean-token-mean"),
    ),
    Row(
        f"{ACTOR}.loss_scale_factor",
        note="loss_agg_mode=seq-mean-token-sum-norm divides by the longest response that is possible",
    ),
    Row(
        f"{ACTOR}.entropy_coeff",
        "algorithm.entropy_loss_fn_args.entropy_coef",
        same("algorithm.entropy_loss_fn_args.entropy_coef"),
        "",
        0.0,
    ),
    Row(f"{ACTOR}.use_kl_loss", "algorithm.kl_loss_fn", _uses_kl_loss(), "", False, True),
    Row(
        f"{ACTOR}.kl_loss_type",
        "algorithm.kl_loss_fn",
        _kl("algorithm.kl_loss_fn", f"{ACTOR}.use_kl_loss"),
        "a `+` (straight-through gradient) is left out",
        "low_var_kl",
        tells=lambda value, said: str(value).endswith("+"),
    ),
    Row(
        f"{ACTOR}.kl_loss_coef",
        "algorithm.kl_loss_fn_args.kl_coef",
        same("algorithm.kl_loss_fn_args.kl_coef"),
        "",
        0.001,
    ),
)
