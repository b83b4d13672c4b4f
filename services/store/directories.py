"""Where a file of a store may be made."""

import os
from pathlib import Path

from services.store.errors import StoreBusy, StoreError


def assert_writable(path: Path) -> None:
    """
    Raises:
        StoreError: there is no place for the file, or we may not write there.
    """
    whole = path.absolute()
    existing = next(each for each in (whole, *whole.parents) if each.exists())
    if existing != whole and not existing.is_dir():
        raise StoreError(f"{path}: {existing} is no directory: choose another path")
    if not os.access(existing, os.W_OK):
        raise StoreError(f"{path} cannot be written: no permission in {existing}")


def make_directory(directory: Path) -> None:
    """
    Raises:
        StoreError: something else stands there.
        StoreBusy: it cannot be made for now.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{directory} cannot be a directory, a file is there: choose another path") from error
    except OSError as error:
        raise StoreBusy(f"{directory}: {error.strerror or error}") from error
