"""Rows of `data`: tasksets, lengths and batches."""

import math
import posixpath
import re
from typing import Any

from services.convert.row import NOTHING, Owned, Row, Spoken, Values, Way, at_home, path, same

INPUT = "buffer.explorer_input"
SPLITS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
CHECK = "check it against the columns of the data"
ITERATIONS = "a step here is one update of the policy, and veRL counts iterations of train_batch_size prompts"

MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
BATCH = "data.train_batch_size"
REPEATS = "actor_rollout_ref.rollout.n"


def whole(value: Any, default: int = 1) -> int:
    """A number, or `default` where only the environment knows it."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def updates(said: Values) -> int:
    """Updates of the policy in one of veRL's iterations."""
    return max(1, math.ceil(whole(said.value(BATCH), 1024) / max(1, whole(said.value(MINI), 256))))


def files(value: Any) -> list[str]:
    """The files of `data.train_files`: one, or a list."""
    return [str(each) for each in value] if isinstance(value, list) else [] if value is None else [str(value)]


def placed(file: str) -> tuple[str, str, str]:
    """The name, path and split of a taskset: `gsm8k/train.parquet` is split `train` of the directory `gsm8k`."""
    file = str(at_home(file))
    directory, name = posixpath.split(file)
    stem = name.rpartition(".")[0] or name
    if stem in SPLITS and directory and posixpath.basename(directory) not in ("", "data"):
        return _plain(posixpath.basename(directory)), directory, SPLITS[stem]
    return _plain(stem), file, "train"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "taskset"


def _tasksets(which: str, suffix: str) -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        found: dict[str, Any] = {}
        names: list[str] = []
        for place, file in enumerate(files(value)):
            name, where, split = placed(file)
            names.append(name)
            twins = names.count(name)
            at = f"{INPUT}.{which}[{place}]"
            found |= {
                f"{at}.name": Spoken(f"{name}{suffix}" + (f"_{twins}" if twins > 1 else ""), key),
                f"{at}.storage_type": Spoken("file", key),
                f"{at}.path": Spoken(where, f"{key}: {file}"),
                f"{at}.split": Spoken(split, key),
                f"{at}.format.prompt_key": Spoken(said.value("data.prompt_key"), f"data.prompt_key: {CHECK}"),
                f"{at}.format.response_key": Spoken("answer", CHECK),
            }
        return found

    def backward(key: str, mine: Values) -> Any:
        found = []
        for place in range(mine.count(f"{INPUT}.{which}")):
            where = mine.value(f"{INPUT}.{which}[{place}].path", NOTHING)
            if where is NOTHING or mine.value(f"{INPUT}.{which}[{place}].storage_type", "file") != "file":
                continue
            found.append(file_of(str(where), str(mine.value(f"{INPUT}.{which}[{place}].split", "train"))))
        return NOTHING if not found else found[0] if len(found) == 1 else found

    return Way(forward, backward, "`<dir>/<split>.parquet` → name, directory and split; any other file is a path")


def file_of(where: str, split: str) -> str:
    stem = next((name for name, own in SPLITS.items() if own == split.partition("[")[0]), split)
    return where if re.search(r"\.\w{2,7}$", where) else f"{where}/{stem}.parquet"


def _of_each(which: str, files_key: str, name: str, value_of: Any = None, told: str = "") -> Way:
    """One value for each taskset of a kind; `value_of` turns veRL's value into ours."""

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        mine = value_of(value) if value_of else value
        number = len(files(said.value(files_key)))
        return {} if mine is NOTHING else {f"{INPUT}.{which}[{place}].{name}": mine for place in range(number)}

    return Way(forward, lambda key, mine: mine.agreed(f"{INPUT}.{which}", name), told)


def _prompt() -> Way:
    """The column of prompts, of training and of evaluation alike."""
    name = "format.prompt_key"

    def backward(key: str, mine: Owned) -> Any:
        found = mine.agreed(f"{INPUT}.tasksets", name)
        return mine.agreed(f"{INPUT}.eval_tasksets", name, found)

    return Way(of_training(name).forward, backward)


def of_training(name: str) -> Way:
    return _of_each("tasksets", "data.train_files", name)


def of_evaluation(name: str) -> Way:
    return _of_each("eval_tasksets", "data.val_files", name)


def _shuffled() -> Way:
    selector = "data_selector.selector_type"
    forward = _of_each("tasksets", "data.train_files", selector, lambda on: "shuffle" if on else "sequential").forward

    def backward(key: str, mine: Owned) -> Any:
        value = mine.agreed(f"{INPUT}.tasksets", selector)
        return NOTHING if value is NOTHING else value != "sequential"

    return Way(forward, backward, "true → shuffle, false → sequential")


def _first_rows(which: str, files_key: str) -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        if whole(value, -1) < 0:
            return {}
        of_file = [placed(file)[2] for file in files(said.value(files_key))]
        return {f"{INPUT}.{which}[{place}].split": f"{split}[:{value}]" for place, split in enumerate(of_file)}

    def backward(key: str, mine: Values) -> Any:
        match = re.search(r"\[:(\d+)\]$", str(mine.value(f"{INPUT}.{which}[0].split", "")))
        return int(match[1]) if match else NOTHING

    return Way(forward, backward, "n → `split[:n]` of each taskset, -1 → all")


def _batch() -> Way:
    return Way(
        lambda key, value, said: {
            "synchronizer.sync_interval": Spoken(updates(said), f"{BATCH} / {MINI} = {value} / {said.value(MINI)}")
        },
        lambda key, mine: _product(mine.value("buffer.batch_size"), mine.value("synchronizer.sync_interval", 1)),
        "divided by actor.ppo_mini_batch_size",
    )


def _mini_batch() -> Way:
    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        size = min(whole(value, 256), whole(said.value(BATCH), 1024))
        repeats = whole(said.value(REPEATS))
        return {
            "buffer.batch_size": size,
            "buffer.train_batch_size": Spoken(size * repeats, f"{MINI} * {REPEATS} = {size} * {repeats}"),
        }

    return Way(
        forward, lambda key, mine: mine.value("buffer.batch_size", NOTHING), "batch_size; times n train_batch_size"
    )


def _product(*numbers: Any) -> Any:
    return math.prod(numbers) if all(isinstance(number, int) for number in numbers) else NOTHING


def _truncation() -> Way:
    """`filter_overlong_prompts` and `truncation` decide together what becomes of a prompt that is too long."""
    ours = "model.enable_prompt_truncation"

    def forward(key: str, value: Any, said: Values) -> dict[str, Any]:
        cuts = bool(said.value("data.filter_overlong_prompts")) or said.value("data.truncation") != "error"
        return {ours: cuts}

    def backward(key: str, mine: Values) -> Any:
        cuts = mine.value(ours, NOTHING)
        if cuts is NOTHING:
            return NOTHING
        return bool(cuts) if key.endswith("prompts") else "error"

    return Way(forward, backward, "true where prompts are filtered or cut, else false")


def _thinking() -> Way:
    return same("model.enable_thinking")


DATA: tuple[Row, ...] = (
    Row(
        "data.train_files",
        f"{INPUT}.tasksets[]",
        _tasksets("tasksets", ""),
        "check format.response_key: in files of veRL's own preprocessing it is reward_model.ground_truth",
        default="~/data/rlhf/gsm8k/train.parquet",
        is_written=True,
        tells=lambda value, said: True,
    ),
    Row(
        "data.val_files",
        f"{INPUT}.eval_tasksets[]",
        _tasksets("eval_tasksets", "_eval"),
        default="~/data/rlhf/gsm8k/test.parquet",
        is_written=True,
    ),
    Row("data.prompt_key", f"{INPUT}.*[].format.prompt_key", _prompt(), default="prompt"),
    Row("data.image_key", f"{INPUT}.tasksets[].format.image_key", of_training("format.image_key"), default="images"),
    Row("data.video_key", f"{INPUT}.tasksets[].format.video_key", of_training("format.video_key"), default="videos"),
    Row(
        "data.shuffle",
        f"{INPUT}.tasksets[].data_selector.selector_type",
        _shuffled(),
        default=True,
        is_written=True,
    ),
    Row(
        "data.seed",
        f"{INPUT}.tasksets[].data_selector.seed",
        _of_each("tasksets", "data.train_files", "data_selector.seed", lambda seed: NOTHING if seed is None else seed),
        "the order differs from veRL's: each seeds a generator of its own",
    ),
    Row(
        "data.train_max_samples",
        f"{INPUT}.tasksets[].split",
        _first_rows("tasksets", "data.train_files"),
        "the first n rows of each taskset; veRL draws n of all when it shuffles",
        default=-1,
        tells=lambda value, said: whole(value, -1) >= 0,
    ),
    Row(
        "data.val_max_samples",
        f"{INPUT}.eval_tasksets[].split",
        _first_rows("eval_tasksets", "data.val_files"),
        "the first n rows of each taskset; veRL takes n of all together",
        default=-1,
        tells=lambda value, said: whole(value, -1) >= 0,
    ),
    Row("data.max_prompt_length", "model.max_prompt_tokens", same("model.max_prompt_tokens"), "", 512, True),
    Row("data.max_response_length", "model.max_response_tokens", same("model.max_response_tokens"), "", 512, True),
    Row(
        BATCH,
        "synchronizer.sync_interval",
        _batch(),
        default=1024,
        is_written=True,
        always=True,
        note="train_batch_size / ppo_mini_batch_size steps are made with what one version of the weights has sampled",
    ),
    Row(
        "data.filter_overlong_prompts",
        "model.enable_prompt_truncation",
        _truncation(),
        "a prompt that is too long is cut and its answers are masked; veRL leaves the row out",
        default=False,
        is_written=True,
        tells=lambda value, said: bool(value),
    ),
    Row("data.truncation", "model.enable_prompt_truncation", _truncation(), "", "error"),
    Row(
        "data.apply_chat_template_kwargs.enable_thinking",
        "model.enable_thinking",
        _thinking(),
    ),
    Row("data.tokenizer", "buffer.tokenizer_path", path("buffer.tokenizer_path")),
    Row("data.trust_remote_code", "model.trust_remote_code", same("model.trust_remote_code"), default=False),
    Row("data.apply_chat_template_kwargs*", note="the chat template takes enable_thinking alone"),
    Row("data.gen_batch_size", note="a task is released when it is its turn: no batch is made of prompts"),
    Row("data.{val_batch_size,validation_shuffle}", note="evaluation answers tasks one by one"),
    Row(
        "data.{return_raw_input_ids,return_raw_chat,return_full_prompt,return_multi_modal_inputs}",
        note="a task carries its row as it is",
    ),
    Row("data.filter_overlong_prompts_workers", note="prompts are measured when they are sampled"),
    Row(
        "data.reward_fn_key",
        note="a taskset's workflow decides the reward (default_workflow_type, default_reward_fn_type)",
    ),
    Row("data.{dataloader_num_workers,use_shm,num_workers}", note="rows are read where they are needed"),
    Row("data.{tool_config_path,function_tool_path,tools_key}", note="a workflow brings its own tools"),
    Row("data.{image_patch_size,mm_processor_kwargs*}", note="models of images, videos and sounds are not available"),
    Row("data.audio_key", note="models of images, videos and sounds are not available"),
    Row(
        "data.custom_cls.*", note="rows are read by the datasets library; a plug-in workflow may read them its own way"
    ),
    Row("data.{sampler.*,datagen.*,curriculum*}", note="an order of one's own is a task_selector of a plug-in"),
    Row("data.continuous_token.*", note="tokens of a conversation are never encoded twice"),
    Row("data.{chat_template,chat_template_path}", note="a chat template is given by model.custom_chat_template"),
    Row(MINI, "buffer.batch_size, buffer.train_batch_size", _mini_batch(), "", 256, True, True),
)
