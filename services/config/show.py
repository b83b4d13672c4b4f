"""A configuration as people read it: every value with where it came from, and how the batch sizes hang together."""

from collections.abc import Iterator

from services.config.explain import shown
from services.config.keys import Part, is_under, joined
from services.config.load import Loaded
from services.config.tree import RunConfig

INDENT = "  "
MAX_COMMENT_COLUMN = 72


def render(loaded: Loaded, *, with_defaults: bool = True) -> str:
    """The resolved configuration in the form of YAML, each value followed by its origin."""
    rows = list(_rows(loaded, loaded.config.model_dump(), (), with_defaults))
    column = min(max((len(text) for text, origin in rows if origin), default=0), MAX_COMMENT_COLUMN)
    lines = [f"{text:<{column}}  # {origin}" if origin else text for text, origin in rows]
    notes = [f"# note: {note}" for note in loaded.notes]
    return "\n".join([*lines, "", *(f"# {line}" for line in explain_sizes(loaded.config)), *notes]) + "\n"


def explain_sizes(config: RunConfig) -> list[str]:
    """How tasks become experiences and experiences become optimizer steps, line by line."""
    if config.experience_source == "rows":
        return _sizes_of_rows(config)
    made = config.batch_size * config.repeat_times
    experts = f", of which {config.expert_batch_size} are expert rows" if config.expert_batch_size else ""
    epochs = f"{config.buffer.total_epochs} epochs (total_epochs)"
    lines = {
        "run directory": f"{config.run_dir}",
        "batch": f"batch_size {config.batch_size} * repeat_times {config.repeat_times} = {made} experiences",
        "optimizer step": f"train_batch_size {config.train_batch_size} experiences{experts}, "
        f"{config.usual_batch_size / made:g} of a batch"
        + (f": {config.fresh_batch_size} fresh, the others trained on again" if config.may_reuse else ""),
        "new weights": f"every {config.synchronizer.sync_interval} optimizer steps (sync_interval)",
        "staleness": _staleness(config),
        "length": f"max_prompt_tokens {config.max_prompt_tokens} + max_response_tokens "
        f"{config.max_response_tokens} of max_model_len {config.max_model_len}",
        "end": epochs if config.total_steps is None else f"{config.total_steps} steps (total_steps)",
    }
    return _aligned(lines)


def _sizes_of_rows(config: RunConfig) -> list[str]:
    """The same of a run that trains on rows of data, where nobody samples."""
    epochs = f"{config.buffer.total_epochs} epochs of the rows (total_epochs)"
    rows = config.train_batch_size // max(1, config.repeat_times)
    lines = {
        "run directory": f"{config.run_dir}",
        "optimizer step": f"train_batch_size {config.train_batch_size} experiences, from {rows} rows",
        "new weights": f"every {config.synchronizer.sync_interval} optimizer steps (sync_interval)",
        "length": f"at most max_model_len {config.max_model_len}",
        "end": epochs if config.total_steps is None else f"{config.total_steps} steps (total_steps)",
    }
    return _aligned(lines)


def _aligned(lines: dict[str, str]) -> list[str]:
    return [f"{what:<15} {how}" for what, how in lines.items()]


def _staleness(config: RunConfig) -> str:
    pace = config.synchronizer
    if pace.max_staleness is not None:
        return f"at most {pace.max_staleness} steps (max_staleness)"
    if pace.sync_style != "fixed":
        return f"whatever sync_style {pace.sync_style} allows"
    return f"at most {2 * (pace.sync_offset + pace.sync_interval - 1)} steps, 2 * (sync_offset + sync_interval - 1)"


def _rows(loaded: Loaded, node: object, path: tuple[Part, ...], with_defaults: bool) -> Iterator[tuple[str, str]]:
    """Lines of text with their origins; a section's own line has none."""
    children: list[tuple[Part, object]] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list):
        children = list(enumerate(node))
    for part, child in children:
        here = (*path, part)
        key = joined(here)
        if not with_defaults and not _is_decided(loaded, key):
            continue
        label = f"{INDENT * len(path)}{'-' if isinstance(part, int) else f'{part}:'}"
        if isinstance(child, dict | list) and child:
            yield label, ""
            yield from _rows(loaded, child, here, with_defaults)
        else:
            yield f"{label} {_scalar(child)}", loaded.origins.get(key, "default")


def _scalar(value: object) -> str:
    if isinstance(value, str):
        plain = value and value.isprintable() and value.strip() == value and value[0] not in "-?:,[]{}#&*!|>'\"%@`"
        return shown(value) if plain and value not in ("null", "true", "false") else shown(repr(value))
    return shown(value)


def _is_decided(loaded: Loaded, key: str) -> bool:
    """Whether a person, or another key, decided anything at or below `key`."""
    return any(is_under(other, key) and origin != "default" for other, origin in loaded.origins.items())
