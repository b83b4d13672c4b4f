"""What must hold where a run trains on rows of data: alone (sft, cpt, dpo), or mixed into what was sampled."""

from collections.abc import Callable, Iterator

from services.config.algorithms.choice import part_of
from services.config.algorithms.parts import ADVANTAGES, POLICY_LOSSES
from services.config.errors import Problem
from services.config.rows import EXPERIENCES_OF_A_ROW, ROWS_ONLY, is_share
from services.config.tree import RunConfig

BUFFER = "buffer.trainer_input.experience_buffer"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
RATIO = "algorithm.sample_strategy_args.expert_data_ratio"
TRAINING_MODES = ("both", "explore", "train", "serve", "colocate")


def _rows_are_given(config: RunConfig) -> Iterator[Problem]:
    name = config.algorithm.algorithm_type
    if name in ROWS_ONLY and config.mode in TRAINING_MODES and config.experience_source == "stream":
        what = f"algorithm.algorithm_type={name} learns from rows of data"
        if config.mode != "train":
            message = f"{what}, and mode={config.mode} samples its own: set mode=train"
            yield Problem("mode", f"{message}, with {BUFFER}.storage_type=file and its path")
        else:
            yield Problem(BUFFER, f"{what}: set {BUFFER}.storage_type=file and its path")


def _rows_can_be_found(config: RunConfig) -> Iterator[Problem]:
    buffer = config.buffer.trainer_input.experience_buffer
    if config.experience_source == "rows" and buffer is not None and not buffer.path:
        yield Problem(f"{BUFFER}.path", f"{BUFFER}.path is missing: give a file, a directory or a data set's name")


def _rows_are_of_the_algorithm(config: RunConfig) -> Iterator[Problem]:
    buffer, schema = config.buffer.trainer_input.experience_buffer, config.row_schema
    if config.experience_source != "rows" or buffer is None or schema is None:
        return
    name, of_a_row = config.algorithm.algorithm_type, EXPERIENCES_OF_A_ROW[schema]
    if config.repeat_times != of_a_row:
        message = (
            f"algorithm.repeat_times={config.repeat_times} with {name} on rows of data: a row makes {of_a_row}; leave "
            "it out"
        )
        yield Problem("algorithm.repeat_times", message)
    if buffer.schema_type not in (None, schema):
        message = f"{BUFFER}.schema_type={buffer.schema_type}, and {name} reads rows of {schema}: leave it out"
        yield Problem(f"{BUFFER}.schema_type", message)
    if schema == "cpt" and buffer.format.prompt_type == "chatpair":
        message = f"{BUFFER}.format.prompt_type=chatpair has an answer, and cpt learns a whole text: use plaintext"
        yield Problem(f"{BUFFER}.format.prompt_type", f"{message} or messages")
    if config.mixing is not None:
        message = f"algorithm.sample_strategy=mix adds rows to sampled experiences, and {name} here has only rows"
        yield Problem("algorithm.sample_strategy", f"{message}: leave it out")


def _the_loss_is_of_the_rows(config: RunConfig) -> Iterator[Problem]:
    name, schema = part_of(config, "policy_loss_fn"), config.row_schema
    part, told = POLICY_LOSSES.get(name), f"algorithm.policy_loss_fn={name} learns from"
    if config.experience_source != "rows" or part is None:
        return
    if part.learns_from_advantages:
        message = f"{told} advantages, and rows of data have no rewards to make them of: leave it out"
        yield Problem("algorithm.policy_loss_fn", message)
    elif part.is_paired and schema != "dpo":
        message = f"{told} pairs, and rows of {schema} are no pairs: leave it out, or set algorithm_type=dpo"
        yield Problem("algorithm.policy_loss_fn", message)
    elif schema == "dpo" and not part.is_paired:
        message = f"{told} single answers, and rows of dpo are pairs: leave it out, or set algorithm_type=sft"
        yield Problem("algorithm.policy_loss_fn", message)


def _rows_have_no_advantages(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "advantage_fn")
    if config.experience_source == "rows" and name != "none" and name in ADVANTAGES:
        message = f"algorithm.advantage_fn={name}, and rows of data are learned from without advantages: leave it out"
        yield Problem("algorithm.advantage_fn", message)


def _the_loss_knows_experts(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "policy_loss_fn")
    part = POLICY_LOSSES.get(name)
    is_mixed = config.expert_batch_size > 0 and config.mode in TRAINING_MODES and config.experience_source != "rows"
    if not is_mixed or part is None or "expert_mask" in part.reads:
        return
    key, told = "algorithm.sample_strategy", "algorithm.sample_strategy=mix adds expert rows, which"
    if part.learns_from_advantages:
        message = f"{told} have advantage 0, and policy_loss_fn={name} learns from advantages alone"
        yield Problem(key, f"{message}: use policy_loss_fn=mix or mix_chord, or leave it out")
    elif part.is_paired:
        yield Problem(key, f"{told} are no pairs, and policy_loss_fn={name} learns from pairs: leave it out")


def _expert_data_is_there(config: RunConfig) -> Iterator[Problem]:
    mixing = config.mixing
    if mixing is None or config.mode not in TRAINING_MODES:
        return
    key = f"{AUXILIARY}.{mixing.sft_dataset_name}"
    buffer = config.buffer.trainer_input.auxiliary_buffers.get(mixing.sft_dataset_name)
    if buffer is None:
        there = ", ".join(config.buffer.trainer_input.auxiliary_buffers) or "none"
        message = f"algorithm.sample_strategy=mix takes expert rows from {key}, which is not there (there: {there})"
        yield Problem(AUXILIARY, f"{message}: add it, or name another in sample_strategy_args.sft_dataset_name")
        return
    if buffer.storage_type != "file" or not buffer.path:
        message = f"{key} needs storage_type=file and a path: it has {buffer.storage_type} and {buffer.path}"
        yield Problem(f"{key}.path", message)
    if buffer.schema_type not in (None, "sft"):
        yield Problem(
            f"{key}.schema_type", f"{key}.schema_type={buffer.schema_type}: expert rows are sft; leave it out"
        )


def _expert_data_leaves_room(config: RunConfig) -> Iterator[Problem]:
    if config.mixing is None:
        return
    ratio = (config.algorithm.sample_strategy_args or {}).get("expert_data_ratio", config.mixing.expert_data_ratio)
    if not is_share(ratio):
        yield Problem(RATIO, f"{RATIO}={ratio} is no share of a batch: use 0 or more, below 1")
    elif config.usual_batch_size < 1:
        message = (
            f"{RATIO}={ratio} of train_batch_size={config.train_batch_size} are {config.expert_batch_size} expert "
            "rows, which leave none for sampled experiences: use a smaller ratio, or a larger batch"
        )
        yield Problem("buffer.train_batch_size", message)


ROW_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _rows_are_given,
    _rows_can_be_found,
    _rows_are_of_the_algorithm,
    _the_loss_is_of_the_rows,
    _rows_have_no_advantages,
    _the_loss_knows_experts,
    _expert_data_is_there,
    _expert_data_leaves_room,
)
