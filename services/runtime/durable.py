"""Directories that are complete or absent: written aside, flushed to disk, and renamed in one step."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def committed(directory: Path) -> Iterator[Path]:
    """A directory to write into. When the block ends well it becomes `directory`, replacing what stood there."""
    aside = directory.with_name(f".{directory.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    flush(aside)
    if directory.exists():
        shutil.rmtree(directory)
    aside.rename(directory)
    flush_entry(directory.parent)


def write_file(path: Path, text: str) -> None:
    """Replace a small file in one step."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(text, encoding="utf-8")
    flush_entry(aside)
    aside.replace(path)
    flush_entry(path.parent)


def flush(directory: Path) -> None:
    """Have everything below `directory` on disk."""
    for path in [*directory.rglob("*"), directory]:
        flush_entry(path)


def flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
