"""Keys of this project that may be given by another name: by veRL's in `trainer.trainer_config`, or by an older one.

What is given by one name alone counts by all; what is given by two must agree.
"""

from collections.abc import Iterator
from typing import Any

from services.config.keys import get, put, split
from services.config.section import Section
from services.config.tree import RunConfig
from services.config.verl.keys import SAME
from services.config.verl.tree import Said, said

PRECISIONS = ("fp32", "bf16")
CLIP, CLIP_OF_OPTIMIZER = "trainer.grad_clip", "algorithm.optimizer.clip_grad"
_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
}


def taken_over(config: RunConfig) -> Iterator[tuple[str, Any, str]]:
    """Our keys that only another name gives: the key, its value, and that name."""
    seen: set[str] = set()
    for each in said(config):
        ours = SAME.get(each.key)
        if ours is None or ours in seen or is_given(config, ours) or not fits(each):
            continue
        if ours == CLIP and is_given(config, CLIP_OF_OPTIMIZER):
            continue
        seen.add(ours)
        yield ours, each.value, each.place
    yield from _clipping(config, seen)
    style, scheduler = "algorithm.optimizer.warmup_style", "algorithm.optimizer.lr_scheduler_type"
    if is_given(config, style) and not is_given(config, scheduler) and scheduler not in seen:
        yield scheduler, config.algorithm.optimizer.warmup_style, style


def with_taken_over(config: RunConfig) -> RunConfig:
    """The same configuration with these keys filled in."""
    found = list(taken_over(config))
    if not found:
        return config
    tree = config.model_dump(exclude_unset=True)
    for key, value, _ in found:
        put(tree, key, value)
    return RunConfig.model_validate(tree)


def contradictions(config: RunConfig) -> Iterator[tuple[Said, str, Any]]:
    """What veRL's name and ours say differently: the first, our key, and its value."""
    tree = config.model_dump()
    for each in said(config):
        ours = SAME.get(each.key)
        if ours is not None and fits(each) and get(tree, ours) != each.value:
            yield each, ours, get(tree, ours)


def is_given(config: RunConfig, key: str) -> bool:
    """Whether someone has given a key of ours a value, be it its default."""
    section: Section = config
    *way, last = split(key)
    for part in way:
        if part not in section.model_fields_set:
            return False
        section = getattr(section, str(part))
    return last in section.model_fields_set and getattr(section, str(last)) is not None


def fits(each: Said) -> bool:
    """Whether the value is of the kind that veRL's field, or ours, takes."""
    if isinstance(each.value, bool) and each.kind not in ("bool", "any"):
        return False
    if each.key.endswith(".betas"):
        return isinstance(each.value, list) and len(each.value) == 2 and all(map(_is_number, each.value))
    kinds = _KINDS.get(each.kind or "any")
    if kinds is not None:
        return isinstance(each.value, kinds)
    return each.value in PRECISIONS if each.key.endswith("mixed_precision.param_dtype") else True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clipping(config: RunConfig, seen: set[str]) -> Iterator[tuple[str, Any, str]]:
    """`algorithm.optimizer.clip_grad` and `trainer.grad_clip` are one."""
    if is_given(config, CLIP_OF_OPTIMIZER):
        if not is_given(config, CLIP):
            yield CLIP, config.algorithm.optimizer.clip_grad, CLIP_OF_OPTIMIZER
        return
    values = [each.value for each in said(config) if SAME.get(each.key) == CLIP and fits(each)]
    value = values[0] if CLIP in seen else config.trainer.grad_clip
    if value != config.algorithm.optimizer.clip_grad:
        yield CLIP_OF_OPTIMIZER, value, CLIP
