"""What kind of model a directory, or a hub's cache, holds: read from its `config.json` alone."""

import json
from pathlib import Path

_CLASSIFIER = "ForSequenceClassification"


def is_classifier(model_path: str, may_download: bool = False) -> bool | None:
    """Whether the model classifies sequences rather than continues them; None where its `config.json` is not here.

    With `may_download` that of a model on a hub is fetched, where it can be.
    """
    path = _config_of(model_path, may_download)
    if path is None:
        return None
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError):
        return None  # whoever loads the model says why it cannot
    return any(str(name).endswith(_CLASSIFIER) for name in named)


def _config_of(model_path: str, may_download: bool) -> Path | None:
    """The file itself, or the copy that an earlier download has left."""
    local = Path(model_path).expanduser() / "config.json"
    if local.is_file():
        return local
    if model_path.startswith((".", "/", "~")) or model_path.count("/") != 1:
        return None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model_path, "config.json")
        if may_download and not isinstance(found, str):
            found = hf_hub_download(model_path, "config.json")
    except (OSError, ValueError):  # no network, no such model, or a name that cannot be one
        return None
    return Path(found) if isinstance(found, str) else None
