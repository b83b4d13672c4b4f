"""Where rows come from: files, the Hugging Face hub, and reasoning-gym's generators."""

import re
import tempfile
from pathlib import Path
from typing import Any, Protocol

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError, nearest

FILE_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
GENERATOR_ROWS = 500


class Rows(Protocol):
    """What a library gives us to read rows from."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def generated(name: str, config: TasksetConfig) -> tuple[Rows, list[str]]:
    """Rows of a reasoning-gym generator: question, answer, metadata. `size` and `seed` are among `generator_args`."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    generator = config.path or ""
    if generator not in DATASETS:
        raise TasksetError(name, f"reasoning-gym has no generator {generator!r}: {nearest(generator, DATASETS)}")
    arguments = {"size": GENERATOR_ROWS, "seed": config.data_selector.seed, **config.generator_args}
    try:
        rows: Rows = reasoning_gym.create_dataset(generator, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise TasksetError(name, f"generator_args of {generator}: {error}") from error
    return rows, list(rows[0]) if len(rows) else []


def read(name: str, config: TasksetConfig, cache_dir: Path | None) -> tuple[Rows, list[str]]:
    """Rows by the `datasets` library: of a file, a directory in its layout, or a data set of the hub."""
    import datasets

    source, is_local = _source(name, config)
    if cache_dir is None and is_local:
        cache_dir = Path(_scratch().name)
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(**source, cache_dir=None if cache_dir is None else str(cache_dir))
        _check_split(name, config.split, _splits(builder))
        builder.download_and_prepare()
        rows = builder.as_dataset(split=config.split)
    except StopIteration:
        raise TasksetError(name, f"{config.path} has no rows") from None
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        words = _described(error.__cause__ or error)
        if config.subset_name and "BuilderConfig" in words:
            words += f"; subset_name={config.subset_name} is none of its parts: leave it out, or name another"
        raise TasksetError(name, f"{config.path} cannot be read: {words}") from error
    return rows, list(rows.column_names)


def _source(name: str, config: TasksetConfig) -> tuple[dict[str, Any], bool]:
    """What to load, in the words of `datasets`, and whether it lies on this machine."""
    place = Path(config.path or "").expanduser()
    if place.is_dir():
        return {"path": str(place.resolve()), "name": config.subset_name}, True
    if place.is_file():
        if place.suffix not in FILE_READERS:
            raise TasksetError(name, f"{place} is none of {', '.join(FILE_READERS)}")
        split = _split_name(config.split)  # a single file is the split that is asked for
        return {"path": FILE_READERS[place.suffix], "data_files": {split: [str(place.resolve())]}}, True
    is_hub_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(config.path)) and place.suffix not in FILE_READERS
    if not is_hub_name:
        raise TasksetError(name, f"{place} is not there")
    return {"path": str(config.path), "name": config.subset_name}, False


def _splits(builder: Any) -> list[str]:
    """The splits of a data set before it is prepared; empty where it does not say."""
    return [str(split) for split in (builder.config.data_files or builder.info.splits or ())]


def _check_split(name: str, split: str, splits: list[str]) -> None:
    wanted = _split_name(split)
    if splits and wanted not in splits and wanted != "all":
        raise TasksetError(name, f"no split {wanted!r}: {nearest(wanted, splits)} (it has {', '.join(splits)})")


def _split_name(split: str) -> str:
    """The split's name without a slice: `train` of `train[:100]`."""
    return re.split(r"[\[+]", split, maxsplit=1)[0]


_scratches: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """The process's own cache, removed when the process ends."""
    if not _scratches:
        _scratches.append(tempfile.TemporaryDirectory(prefix="trinity-tasksets-", ignore_cleanup_errors=True))
    return _scratches[0]


def _described(error: BaseException) -> str:
    first_line = str(error).strip().split("\n", 1)[0][:300]
    return f"{type(error).__name__}: {first_line}"
