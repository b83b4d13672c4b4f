"""Directories that are complete or absent: written aside, flushed to disk, and renamed in one step."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL_BYTES = 2**20


@contextmanager
def committed(directory: Path, owner: str = "", replaces: bool = True) -> Iterator[Path]:
    """A directory to write into. When the block ends well it becomes `directory`, replacing what stood there.

    Several owners may write at once, each aside from the others.

    Raises:
        FileExistsError: something stands there that is not to be replaced.
    """
    aside = directory.with_name(f".{directory.name}.{owner}.writing" if owner else f".{directory.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    flush(aside)
    if replaces and directory.exists():
        shutil.rmtree(directory)
    _take_place(aside, directory)
    flush_entry(directory.parent)


def _take_place(aside: Path, directory: Path) -> None:
    try:
        aside.rename(directory)  # fails where a directory with contents stands
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(aside)
        raise FileExistsError(f"{directory} was written by another meanwhile") from error


def is_of_full_disk(error: BaseException, place: Path) -> bool:
    """Whether a write below `place` failed for want of space. To be asked before what was written is removed: libraries
    hide the number of the error, and only the empty disk tells then."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(place).free < _FULL_BYTES


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
