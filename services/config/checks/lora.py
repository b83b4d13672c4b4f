"""What must hold of the adapter that is trained in place of the model's own weights."""

import re
from collections.abc import Callable, Iterator

from services.config.errors import Problem
from services.config.spelling import nearest
from services.config.tree import RunConfig
from services.inference.config import LORA_RANKS, LoRAConfig
from services.inference.layers import adapter_facts, linear_layers

KEY = "model.lora_configs"
FIRST = f"{KEY}[0]"
ALL = "all-linear"
DTYPES = ("auto", "float16", "bfloat16")
_OUTSIDE_THE_BLOCKS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")
_UNKNOWN_TO_ENGINES = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens")


def _one_is_trained(config: RunConfig) -> Iterator[Problem]:
    given = len(config.model.lora_configs or [])
    if given > 1:
        yield Problem(KEY, f"{KEY} has {given} entries, and one adapter is trained: keep one")
    rollout = config.explorer.rollout_model
    if rollout.enable_lora and not given:
        key = "explorer.rollout_model.enable_lora"
        yield Problem(key, f"{key}=true without an adapter: add one to {KEY}, or leave it out")
    if given and rollout.model_path not in (None, config.model.model_path):
        key = "explorer.rollout_model.model_path"
        message = f"{key}={rollout.model_path} and model.model_path={config.model.model_path} differ"
        yield Problem(key, f"{message}: an adapter fits the model that it was trained on; leave {key} out")


def _the_numbers_can_be_had(config: RunConfig) -> Iterator[Problem]:
    lora = config.model.lora
    if lora is None:
        return
    if not 1 <= lora.lora_rank <= LORA_RANKS[-1]:
        yield Problem(f"{FIRST}.lora_rank", f"{FIRST}.lora_rank={lora.lora_rank}: use 1 to {LORA_RANKS[-1]}")
    if lora.lora_alpha < 1:
        yield Problem(f"{FIRST}.lora_alpha", f"{FIRST}.lora_alpha={lora.lora_alpha}: use 1 or more, such as lora_rank")
    if lora.lora_dtype not in DTYPES:
        key = f"{FIRST}.lora_dtype"
        yield Problem(key, f"{key}={lora.lora_dtype} is not known: use {', '.join(DTYPES)} (auto: the engine's)")


def _it_is_of_the_model(config: RunConfig) -> Iterator[Problem]:
    lora, model = config.model.lora, config.model.model_path
    if lora is None or lora.base_model_name in (None, model, model.rstrip("/").rpartition("/")[2]):
        return
    key = f"{FIRST}.base_model_name"
    yield Problem(key, f"{key}={lora.base_model_name} is not model.model_path={model}: give that, or leave it out")


def _the_layers_are_there(config: RunConfig) -> Iterator[Problem]:
    lora = config.model.lora
    if lora is None:
        return
    layers = linear_layers(config.model.model_path)
    for name in ("target_modules", "exclude_modules"):
        asked = getattr(lora, name)
        key = f"{FIRST}.{name}"
        if asked in ([], ""):
            yield Problem(key, f"{key} is empty: name layers, or leave it out")
        elif isinstance(asked, str) and asked != ALL:
            yield from _pattern(key, asked, layers)
        elif isinstance(asked, list):
            yield from (problem for each in asked for problem in _layer(key, each, layers))


def _pattern(key: str, pattern: str, layers: frozenset[str]) -> Iterator[Problem]:
    """One text is a regular expression on whole names, as in PEFT; the name of a layer has to stand in a list."""
    try:
        found = any(re.fullmatch(pattern, name) for name in layers)
    except re.error as error:
        yield Problem(key, f"{key}={pattern} is no regular expression ({error}): name layers in a list, or {ALL}")
        return
    if layers and not found:
        close = nearest(pattern, (ALL, *_last_parts(layers)))
        advice = close if close == ALL else f"[{close}]" if close else f"a list of {_some(layers)}, or {ALL}"
        yield Problem(key, f"{key}={pattern} is a pattern that matches no layer's whole name: use {advice}")


def _layer(key: str, name: str, layers: frozenset[str]) -> Iterator[Problem]:
    if name == ALL:
        yield Problem(key, f"{key}: {ALL} stands alone, not in a list")
    elif name.rpartition(".")[2] in _OUTSIDE_THE_BLOCKS and key.endswith("target_modules"):
        yield Problem(key, f"{key}: {name} is no layer of a block, and engines adapt those alone: leave it out")
    elif layers and not any(layer == name or layer.endswith(f".{name}") for layer in layers):
        close = nearest(name, _last_parts(layers))
        meant = f"did you mean {close}?" if close else f"it has {_some(layers)}"
        yield Problem(key, f"{key}: the model has no layer {name}; {meant}")


def _last_parts(layers: frozenset[str]) -> list[str]:
    parts = {name.rpartition(".")[2] for name in layers}
    return sorted(part for part in parts if part not in _OUTSIDE_THE_BLOCKS and not part.isdigit())


def _some(layers: frozenset[str]) -> str:
    return ", ".join(_last_parts(layers))


def the_beginning_fits(config: RunConfig) -> Iterator[Problem]:
    """What is wrong with the adapter that the run is to begin from."""
    lora = config.model.lora
    if lora is None or lora.path is None:
        return
    key = f"{FIRST}.path"
    try:
        facts = adapter_facts(lora.path)
    except (OSError, ValueError) as error:
        yield Problem(key, f"{key}={lora.path} is no adapter: {error}")
        return
    yield from _agreement(lora, facts)
    for name in _UNKNOWN_TO_ENGINES:
        if facts.get(name):
            yield Problem(key, f"{key}={lora.path} has {name}, which vLLM does not know: begin from a plain LoRA")


def _agreement(lora: LoRAConfig, facts: dict[str, object]) -> Iterator[Problem]:
    for ours, name in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        mine, theirs = getattr(lora, ours), facts.get(name)
        if theirs != mine:
            key = f"{FIRST}.{ours}"
            yield Problem(key, f"{key}={mine}, and the adapter at {lora.path} has {theirs}: set {ours}={theirs}")


LORA_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _one_is_trained,
    _the_numbers_can_be_had,
    _it_is_of_the_model,
    _the_layers_are_there,
    the_beginning_fits,
)
