"""Checkpoints: the commit point. Model, optimizer, random states and ledger are on disk together, or not at all.

Layout: `<run>/global_step_N/actor` (the backend's own format), `ledger.json` and `manifest.json` (size and SHA-256 of
every other file). The file `latest_checkpointed_iteration.txt` names the newest, for people and for tools that know
veRL; it decides nothing.

A checkpoint is in force unless a later incarnation of the trainer went on from an earlier step: what a superseded
trainer commits belongs to no lineage, and is never resumed from.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from schemas.state import Resumed
from schemas.weights import FileDigest
from services.inference.weights import digest
from services.runtime.durable import committed, write_file
from services.trainer.ledger import Ledger

log = structlog.get_logger()

LEDGER_FILE = "ledger.json"
MANIFEST_FILE = "manifest.json"
LATEST_FILE = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"^global_step_(\d+)$")
_LEFT = re.compile(r"^\.global_step_\d+\.")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    step: int
    directory: Path

    def ledger(self) -> Ledger:
        return Ledger.from_json((self.directory / LEDGER_FILE).read_text(encoding="utf-8"))

    def manifest(self) -> dict[str, FileDigest]:
        """What each file must be, by its path within the checkpoint; empty where none was written."""
        path = self.directory / MANIFEST_FILE
        if not path.is_file():
            return {}
        listed = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {name: FileDigest(name=name, **facts) for name, facts in listed.items()}

    def damage(self, is_thorough: bool = False) -> list[str]:
        """What is wrong with the files: absent ones, other sizes and, where thorough, other contents."""
        expected = self.manifest()
        found = [_damage(self.directory / name, facts) for name, facts in expected.items()]
        if is_thorough:
            actual = _digests(self.directory, [name for name in expected if (self.directory / name).is_file()])
            found += [
                f"{name}: its contents have changed since it was written"
                for name, facts in actual.items()
                if facts.sha256 != expected[name].sha256 and facts.size_bytes == expected[name].size_bytes
            ]
        return [words for words in found if words]


def committed_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """All complete checkpoints of a run, in force or not, the oldest first."""
    if not run_dir.is_dir():
        return []
    found = [
        Checkpoint(int(match.group(1)), path)
        for path in run_dir.iterdir()
        if (match := _STEP.match(path.name)) and (path / LEDGER_FILE).is_file()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def checkpoints(run_dir: Path, lineage: Sequence[Resumed] = ()) -> list[Checkpoint]:
    """The checkpoints in force, the oldest first, by `lineage` and by what the newest trainer's own says."""
    ledgers = [(checkpoint, checkpoint.ledger()) for checkpoint in committed_checkpoints(run_dir)]
    newest = max((ledger for _, ledger in ledgers), key=lambda ledger: ledger.incarnation, default=Ledger())
    known = {resumed.incarnation: resumed.step for resumed in (*newest.lineage, *lineage)}
    return [
        checkpoint
        for checkpoint, ledger in ledgers
        if all(step >= checkpoint.step for later, step in known.items() if later > ledger.incarnation)
    ]


def commit(run_dir: Path, ledger: Ledger, write: Callable[[Path], None]) -> Checkpoint:
    """Write a checkpoint of the ledger's step; `write` fills the directory with the backend's part.

    Where the step has a checkpoint of this lineage, its model is this one, and the ledger alone is renewed.

    Raises:
        FileExistsError: another trainer has committed this step meanwhile.
    """
    directory = run_dir / f"global_step_{ledger.step}"
    checkpoint = Checkpoint(ledger.step, directory)
    if checkpoint in checkpoints(run_dir, ledger.lineage):
        write_file(directory / LEDGER_FILE, ledger.to_json())
    else:
        if directory.exists():
            directory.rename(run_dir / f".{directory.name}.fenced.{ledger.incarnation}")
        with committed(directory, owner=str(ledger.incarnation), replaces=False) as aside:
            write(aside)
            (aside / MANIFEST_FILE).write_text(_manifest(aside), encoding="utf-8")
            (aside / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8")
    write_file(run_dir / LATEST_FILE, f"{ledger.step}\n")
    log.info("checkpoint_committed", step=ledger.step, directory=str(directory))
    return checkpoint


def prune(run_dir: Path, keep: int, lineage: Sequence[Resumed] = ()) -> list[Path]:
    """Remove all but the newest `keep` checkpoints in force; 0 keeps all. Returns what was removed."""
    if keep <= 0:
        return []
    removed = [checkpoint.directory for checkpoint in checkpoints(run_dir, lineage)[:-keep]]
    remove(removed)
    return removed


def fenced(run_dir: Path, lineage: Sequence[Resumed] = ()) -> list[Checkpoint]:
    """Complete checkpoints that are not in force."""
    in_force = checkpoints(run_dir, lineage)
    return [checkpoint for checkpoint in committed_checkpoints(run_dir) if checkpoint not in in_force]


def leftovers(run_dir: Path) -> list[Path]:
    """What dead and superseded trainers have left: checkpoints half written, or moved out of the way."""
    return sorted(path for path in run_dir.iterdir() if _LEFT.match(path.name)) if run_dir.is_dir() else []


def sweep(run_dir: Path) -> None:
    """Remove the leftovers. A superseded trainer that still writes one of them fails at it."""
    remove(leftovers(run_dir))


def remove(directories: Iterable[Path]) -> None:
    """Remove checkpoints and leftovers, each as a whole."""
    for directory in directories:
        aside = directory.with_name(f".{directory.name.lstrip('.')}.removing")
        directory.rename(aside)  # a checkpoint half removed is none
        shutil.rmtree(aside)
        log.info("checkpoint_removed", directory=str(directory))


def _manifest(directory: Path) -> str:
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    files = {
        name: {"size_bytes": facts.size_bytes, "sha256": facts.sha256}
        for name, facts in _digests(directory, names).items()
    }
    return json.dumps({"format": "trinity-manifest", "version": 1, "files": files}, indent=1)


def _digests(directory: Path, names: list[str]) -> dict[str, FileDigest]:
    with ThreadPoolExecutor() as threads:  # hashing lets the interpreter's lock go
        return dict(zip(names, threads.map(lambda name: digest(directory / name), names), strict=True))


def _damage(path: Path, expected: FileDigest) -> str | None:
    if not path.is_file():
        return f"{expected.name} is not there"
    size = path.stat().st_size
    return None if size == expected.size_bytes else f"{expected.name} has {size} bytes, not {expected.size_bytes}"
