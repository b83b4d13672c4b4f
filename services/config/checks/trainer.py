"""What must hold within `trainer`, and in what `trainer.trainer_config` says by veRL's names."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from services.config.algorithms.choice import part_of
from services.config.algorithms.parts import ADVANTAGES
from services.config.errors import Problem
from services.config.explain import shown
from services.config.schedule import schedule_steps, who_needs_a_total
from services.config.tree import RunConfig
from services.config.verl.keys import OF_ALL_RANKS, OURS, REFUSED
from services.config.verl.same import PRECISIONS, contradictions, fits
from services.config.verl.spelling import is_section, meant
from services.config.verl.tree import PREFIX, Said, explanation, given, said

ABOVE_ZERO = ("*.optim.lr", "critic.cliprange_value", "*.clip_grad", "*.num_cycles")
AT_LEAST_ONE = ("*batch_size_per_gpu", "*max_token_len_per_gpu", "*.ppo_epochs", "*_chunk_size", "*_bucket")
SHARES = ("*.lr_warmup_steps_ratio", "*.min_lr_ratio")
SCHEDULES = ("constant", "cosine")
CHOICES: dict[str, tuple[str, ...]] = {
    "*.lr_scheduler_type": SCHEDULES,
    "*.fsdp*.strategy": ("fsdp2", "fsdp"),
    "*.mixed_precision.param_dtype": PRECISIONS,
    "*.mixed_precision.*_dtype": (*PRECISIONS, "fp16"),
    "*.model_dtype": ("fp32", "float32", "bf16", "bfloat16"),
}
KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a section",
    "betas": "a list of two numbers",
}
OFF: tuple[object, ...] = (False, "", "disabled", [])
"""What leaves a thing out that could not be followed."""
KEPT = ("model", "optimizer", "extra")
OFFLOADS = ("param_offload", "optimizer_offload")


def _keys_of_verl_are_known(config: RunConfig) -> Iterator[Problem]:
    for each in said(config):
        if each.fate == "unknown":
            yield _problem(each, f" is not a key of veRL: {_advice(each)}")
        elif each.fate == "refused" and each.value not in OFF:
            yield _problem(each, f"={shown(each.value)} is not taken: {explanation(each.key, REFUSED)}; leave it out")


def _keys_are_verls_to_give(config: RunConfig) -> Iterator[Problem]:
    for each in said(config):
        if each.fate == "ours":
            instead = explanation(each.key, OURS)
            yield _problem(each, f"={shown(each.value)} is not read from here: set {instead} instead")
        elif each.key in OF_ALL_RANKS:
            name = OF_ALL_RANKS[each.key].rpartition(".")[2]
            message = f"={shown(each.value)} is shared by all {config.trainer_ranks} ranks, and cannot be: set {name}"
            yield _problem(each, message)


def _values_are_of_their_kind(config: RunConfig) -> Iterator[Problem]:
    for each in said(config):
        if each.fate not in ("same", "verl"):
            continue
        choices = next((known for pattern, known in CHOICES.items() if fnmatchcase(each.key, pattern)), None)
        if choices is not None and each.value not in choices:
            yield _problem(each, f"={shown(each.value)} is not known: use {' or '.join(choices)}")
        elif not fits(each):
            kind = "betas" if each.key.endswith(".betas") else each.kind or ""
            yield _problem(each, f"={shown(each.value)} is refused: use {KINDS.get(kind, 'another value')}")
        elif (what := _range(each)) is not None:
            yield _problem(each, f"={shown(each.value)} is refused: use {what}")


def _range(each: Said) -> str | None:
    """What the value should be, where it is none."""
    ranges: tuple[tuple[tuple[str, ...], str, Callable[[float], bool]], ...] = (
        (ABOVE_ZERO, "a number above 0", lambda value: value > 0),
        (AT_LEAST_ONE, "a whole number, 1 or more", lambda value: value >= 1 and value == int(value)),
        (SHARES, "a share, from 0 to 1", lambda value: 0 <= value <= 1),
        (("*.critic_warmup",), "a whole number, 0 or more", lambda value: value >= 0),
    )
    for patterns, what, holds in ranges:
        if not any(fnmatchcase(each.key, pattern) for pattern in patterns):
            continue
        is_number = isinstance(each.value, int | float) and not isinstance(each.value, bool)
        return None if is_number and holds(each.value) else what
    return None


def _names_of_one_thing_agree(config: RunConfig) -> Iterator[Problem]:
    for each, ours, value in contradictions(config):
        yield _problem(each, f"={shown(each.value)} and {ours}={shown(value)} contradict each other: keep one of them")
    optimizer, trainer = config.algorithm.optimizer, config.trainer
    if optimizer.clip_grad != trainer.grad_clip:
        message = f"algorithm.optimizer.clip_grad={optimizer.clip_grad} and trainer.grad_clip={trainer.grad_clip}"
        yield Problem("algorithm.optimizer.clip_grad", f"{message} are one thing: keep trainer.grad_clip")
    named = given(config, "actor_rollout_ref.actor.optim.optimizer")
    if named is not None and optimizer.optimizer_type not in ("adam", str(named).lower()):
        key = "actor_rollout_ref.actor.optim.optimizer"
        message = f"={named} and algorithm.optimizer.optimizer_type={optimizer.optimizer_type} contradict each other"
        yield Problem(PREFIX + key, f"{PREFIX}{key}{message}: keep one of them")
    for name in OFFLOADS:
        key = f"actor_rollout_ref.actor.fsdp_config.{name}"
        if getattr(trainer, name) and given(config, key) is False:
            message = f"{PREFIX}{key}=false and trainer.{name}=true contradict each other: keep one of them"
            yield Problem(PREFIX + key, message)


def _places_agree(config: RunConfig) -> Iterator[Problem]:
    """A key that stands at two of its places."""
    seen: dict[str, Said] = {}
    for each in said(config):
        first = seen.setdefault(each.key, each)
        if first.value != each.value:
            yield _problem(each, f"={shown(each.value)} and {first.written}={shown(first.value)} are one key: keep one")


def _checkpoints_can_be_resumed(config: RunConfig) -> Iterator[Problem]:
    for each in said(config):
        if not each.key.endswith((".save_contents", ".load_contents")) or not isinstance(each.value, list):
            continue
        lacking = [name for name in KEPT if name not in each.value]
        if lacking:
            message = f" lacks {', '.join(lacking)}, without which a run cannot go on exactly: leave it out"
            yield _problem(each, message)
        elif set(each.value) - set(KEPT):
            layout = "for a model in Hugging Face layout set trainer.save_hf_checkpoint"
            yield _problem(each, f"={shown(each.value)}: {layout}")


def _the_cpu_can_attend(config: RunConfig) -> Iterator[Problem]:
    for section in ("actor_rollout_ref.model", "critic.model"):
        key = f"{section}.override_config.attn_implementation"
        asked = given(config, key)
        if asked is not None and config.cluster.gpu_per_node == 0 and asked not in ("sdpa", "eager"):
            message = f"{PREFIX}{key}={shown(asked)} needs a GPU: use sdpa or eager, or leave it out"
            yield Problem(PREFIX + key, message)


def _the_engine_can_do_both(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.ulysses_sequence_parallel_size > 1 and not trainer.use_remove_padding:
        asked = f"trainer.ulysses_sequence_parallel_size={trainer.ulysses_sequence_parallel_size}"
        message = f"{asked} needs packed sequences: set trainer.use_remove_padding=true"
        yield Problem("trainer.use_remove_padding", message)
    if trainer.offload_policy and trainer.trainer_strategy != "fsdp2":
        message = f"is of fsdp2 alone, and trainer.trainer_strategy={trainer.trainer_strategy}: use param_offload"
        yield Problem("trainer.offload_policy", f"trainer.offload_policy=true {message}")


def _groups_of_shards_are_whole(config: RunConfig) -> Iterator[Problem]:
    for each in said(config):
        ranks, size = config.trainer_ranks, each.value
        if not each.key.endswith(".fsdp_size") or not isinstance(size, int) or size < 1 or ranks % size == 0:
            continue
        yield _problem(each, f"={size} does not divide the {ranks} ranks of the trainer: use -1 for all of them")


def _fsdp1_can_follow(config: RunConfig) -> Iterator[Problem]:
    """FSDP1 with its own parameters keeps moments only where a rank holds a part, and its replicas of one rank each
    never add up their gradients."""
    if config.trainer.trainer_strategy != "fsdp":
        return
    for each in said(config):
        if each.key.endswith(".use_orig_params") and each.value is True:
            why = "no run could go on from its checkpoints by trainer.trainer_strategy=fsdp: leave it out, or use fsdp2"
            yield _problem(each, f"=true: {why}")
        elif each.key.endswith(".fsdp_size") and each.value == 1 and config.trainer_ranks > 1:
            why = f"by trainer.trainer_strategy=fsdp each of the {config.trainer_ranks} ranks would train a model of"
            yield _problem(each, f"=1: {why} its own: use -1, or fsdp2")


def _only_a_critic_warms_up(config: RunConfig) -> Iterator[Problem]:
    part = ADVANTAGES.get(part_of(config, "advantage_fn"))
    if part is None or "values" in part.reads or config.trainer.critic_warmup < 1:
        return
    told = f"trainer.critic_warmup={config.trainer.critic_warmup} trains a critic alone"
    message = f"{told}, and algorithm_type={config.algorithm.algorithm_type} has none: use 0, or algorithm_type=ppo"
    yield Problem("trainer.critic_warmup", message)


def _the_schedule_is_possible(config: RunConfig) -> Iterator[Problem]:
    key, given_ = "algorithm.optimizer", config.algorithm.optimizer
    for name in ("lr_warmup_steps_ratio", "min_lr_ratio"):
        value = getattr(given_, name)
        if not 0 <= value <= 1:
            yield Problem(f"{key}.{name}", f"{key}.{name}={value:g} is no share: use a number from 0 to 1")
    if given_.lr_scheduler_type not in SCHEDULES:
        message = f"={shown(given_.lr_scheduler_type)} is not known: use {' or '.join(SCHEDULES)}"
        yield Problem(f"{key}.lr_scheduler_type", f"{key}.lr_scheduler_type{message}")
    if given_.warmup_style not in (None, given_.lr_scheduler_type):
        message = f"{key}.warmup_style={given_.warmup_style} is an older name of lr_scheduler_type, which is"
        yield Problem(f"{key}.warmup_style", f"{message} {given_.lr_scheduler_type}: keep the second")
    if len(given_.betas) != 2 or not all(0 <= beta < 1 for beta in given_.betas):
        yield Problem(f"{key}.betas", f"{key}.betas={given_.betas} are refused: use two numbers from 0 to below 1")
    total = schedule_steps(config)
    if total is not None and given_.lr_warmup_steps >= total:
        message = f"{key}.lr_warmup_steps={given_.lr_warmup_steps} leaves nothing of {total} steps: use fewer"
        yield Problem(f"{key}.lr_warmup_steps", message)


def _the_schedule_has_an_end(config: RunConfig) -> Iterator[Problem]:
    """A trainer that is started apart from the tasks cannot count them."""
    counts_rows = config.mode == "both" or config.experience_source == "rows"
    if counts_rows or config.mode != "train" or schedule_steps(config) is not None:
        return
    for asked in who_needs_a_total(config):
        message = (
            f"{asked} needs the number of steps: set buffer.total_steps, or algorithm.optimizer.total_training_steps"
        )
        yield Problem(asked.partition("=")[0], message)


def _advice(each: Said) -> str:
    if is_section(each.written):
        return "it is a section of keys: they stand below it, indented"
    found = meant(each.written)
    return f"did you mean {found}?" if found else "leave it out"


def _problem(each: Said, message: str) -> Problem:
    return Problem(each.place, f"{each.place}{message}")


TRAINER_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _keys_of_verl_are_known,
    _keys_are_verls_to_give,
    _values_are_of_their_kind,
    _names_of_one_thing_agree,
    _places_agree,
    _checkpoints_can_be_resumed,
    _the_cpu_can_attend,
    _the_engine_can_do_both,
    _groups_of_shards_are_whole,
    _fsdp1_can_follow,
    _only_a_critic_warms_up,
    _the_schedule_is_possible,
    _the_schedule_has_an_end,
)
