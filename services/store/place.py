"""Where experiences are stored: what a path of the configuration means."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.store.errors import StoreError

Kind = Literal["sql", "jsonl", "parquet"]

DIALECTS = ("sqlite", "postgresql")
SUFFIXES: dict[str, Kind] = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class Place:
    """A database by its URL, a file of JSON lines, or a parquet file or directory."""

    kind: Kind
    path: str

    @property
    def shown(self) -> str:
        """The path without a password."""
        if self.kind != "sql":
            return self.path
        scheme, _, rest = self.path.partition("://")
        user, at, host = rest.rpartition("@")
        return f"{scheme}://{user.partition(':')[0]}{at}{host}"


def place_of(path: str) -> Place:
    """What `path` means.

    Raises:
        StoreError: it is neither a URL of a database that is known nor a file of a known kind.
    """
    scheme, separator, rest = path.partition("://")
    if separator:
        return _database(path, scheme, rest)
    kind = SUFFIXES.get(Path(path).suffix)
    if kind is None:
        raise StoreError(f"{path!r} names no store: {_FORMS}")
    return Place(kind, str(Path(path).expanduser()))


_FORMS = "write sqlite:///FILE.db, postgresql://USER:PASSWORD@HOST/DATABASE, or a path that ends in .jsonl or .parquet"


def _database(path: str, scheme: str, rest: str) -> Place:
    dialect = scheme.partition("+")[0]
    if dialect not in DIALECTS:
        raise StoreError(f"{scheme}:// is no database that experiences can be stored in: {_FORMS}")
    if dialect == "sqlite" and not rest.removeprefix("/"):
        raise StoreError(f"{path!r} names no file: write sqlite:///FILE.db (four slashes for an absolute path)")
    if scheme == "postgresql":
        path = f"postgresql+psycopg://{rest}"
    return Place("sql", path)
