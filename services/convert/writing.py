"""A conversion as a YAML file: in the order of the alignment guide's examples, each line with where it comes from."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import yaml

from services.config.keys import Part, split
from services.convert.conversion import Conversion, Line, alike

ORDER: tuple[str, ...] = (
    "mode",
    "project",
    "name",
    "checkpoint_root_dir",
    "checkpoint_job_dir",
    "continue_from_checkpoint",
    "plugin_dirs",
    "algorithm.algorithm_type",
    "algorithm.repeat_times",
    "algorithm.optimizer",
    "algorithm.advantage_fn",
    "algorithm.advantage_fn_args",
    "algorithm.policy_loss_fn",
    "algorithm.policy_loss_fn_args",
    "algorithm.kl_penalty_fn",
    "algorithm.kl_penalty_fn_args",
    "algorithm.kl_loss_fn",
    "algorithm.kl_loss_fn_args",
    "algorithm.entropy_loss_fn_args",
    "algorithm.loss_agg_mode",
    "algorithm",
    "data_processor",
    "model.model_path",
    "model.critic_model_path",
    "model.max_prompt_tokens",
    "model.max_response_tokens",
    "model",
    "cluster.node_num",
    "cluster",
    "buffer.total_epochs",
    "buffer.total_steps",
    "buffer.batch_size",
    "buffer.train_batch_size",
    "buffer.explorer_input.tasksets",
    "buffer.explorer_input.eval_tasksets",
    "buffer",
    "explorer.eval_interval",
    "explorer.eval_on_startup",
    "explorer.rollout_model.engine_num",
    "explorer.rollout_model.tensor_parallel_size",
    "explorer.rollout_model",
    "explorer.auxiliary_models[0].model_path",
    "explorer",
    "synchronizer.sync_style",
    "synchronizer.sync_offset",
    "synchronizer.sync_interval",
    "synchronizer",
    "trainer.trainer_strategy",
    "trainer.save_interval",
    "trainer.trainer_config",
    "trainer",
    "monitor",
)
_OF_ENTRY = ("name", "storage_type", "path", "split", "format", "default", "data_selector", "rollout_args")
_WIDTH = 110
_MANY = 10_000


def written(found: Conversion, heading: Sequence[str] = ()) -> str:
    """The file: its heading, the configuration, and as comments what differs and what has no counterpart."""
    tree = _tree({key: found.lines[key] for key in sorted(found.lines, key=_place)})
    return "\n".join((*_comments(heading), *_mapping(tree, 0), *_remarks(found))) + "\n"


def told(found: Conversion) -> Iterator[tuple[str, list[str]]]:
    """What a person should read about a conversion, by heading."""
    left = [f"{key}: {reason}" for key, reason in alike(found.left)]
    idle = [f"{key}: changes nothing in this run" for key in found.idle]
    for title, sentences in (
        ("Where this run differs from veRL's:", found.differences),
        ("Without a counterpart, and left out:", left + idle),
        ("Not known, and left out:", found.unknown),
    ):
        if sentences:
            yield title, sentences


def _place(key: str) -> tuple[int, ...]:
    """Where a key stands: by the longest entry of ORDER that it lies under, and within a list by the entry's own."""
    inside = [place for place, known in enumerate(ORDER) if key == known or key.startswith((f"{known}.", f"{known}["))]
    best = max(inside, key=lambda place: len(ORDER[place]), default=_MANY)
    # a section stays together: a key under `trainer` alone stands before trainer.trainer_config
    if best < _MANY and ORDER[best] == "trainer":
        best = ORDER.index("trainer.trainer_config") - 1
    parts = split(key)
    numbers = [part for part in parts if isinstance(part, int)]
    names = [part for part in parts[parts.index(numbers[0]) + 1 :] if isinstance(part, str)] if numbers else []
    first = names[0] if names else ""
    rank = next((place for place, name in enumerate(_OF_ENTRY) if first.startswith(name)), len(_OF_ENTRY))
    return (best, numbers[0], rank) if numbers else (best,)


def _tree(lines: Mapping[str, Line]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, line in lines.items():
        grown(tree, split(key), line)
    return tree


def grown(tree: Any, parts: tuple[Part, ...], leaf: Any) -> None:
    """Put a leaf into a tree of dicts and lists, making those on the way."""
    for part, following in pairwise(parts):
        inner: Any = [] if isinstance(following, int) else {}
        tree = _entry(tree, part, inner)
    last = parts[-1]
    if isinstance(last, int):
        _entry(tree, last, leaf)
        tree[last] = leaf
    else:
        tree[last] = leaf


def _entry(tree: Any, part: Part, inner: Any) -> Any:
    if isinstance(part, int):
        tree.extend({} if isinstance(inner, dict) else inner for _ in range(len(tree), part + 1))
        return tree[part]
    return tree.setdefault(part, inner)


def _mapping(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in tree.items():
        yield from _pair(f"{'  ' * depth}{name}:", value, depth)


def _pair(head: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Line):
        yield f"{head} {_scalar(value.value)}{_comment(value)}"
    elif isinstance(value, list):
        yield head
        for entry in value:
            yield from _entry_lines(entry, depth + 1)
    else:
        yield head
        yield from _mapping(value, depth + 1)


def _entry_lines(entry: Any, depth: int) -> Iterator[str]:
    if isinstance(entry, Line):
        yield f"{'  ' * depth}- {_scalar(entry.value)}{_comment(entry)}"
        return
    first = True
    for line in _mapping(entry, depth + 1):
        yield f"{'  ' * depth}- {line.lstrip()}" if first else line
        first = False


def _scalar(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, float):
        return short(value)
    if isinstance(value, list | dict):
        return str(yaml.safe_dump(value, default_flow_style=True, width=_MANY)).strip()
    text = str(yaml.safe_dump(value, width=_MANY, allow_unicode=True)).removesuffix("...\n").strip()
    return text


def short(value: float) -> str:
    """The shortest way to write a number that reads back as it was."""
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:e}".split("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return short if float(short) == value else repr(value)
    return repr(value)


def _comment(line: Line) -> str:
    return f"  # {', '.join(line.origins)}" if line.origins else ""


def _comments(sentences: Sequence[str]) -> Iterator[str]:
    yield from (f"# {each}" for each in sentences)


def _remarks(found: Conversion) -> Iterator[str]:
    for title, sentences in told(found):
        yield "#"
        yield f"# {title}"
        for each in sentences:
            yield from textwrap.wrap(
                each,
                _WIDTH,
                initial_indent="#   - ",
                subsequent_indent="#     ",
                break_long_words=False,
                break_on_hyphens=False,
            )
