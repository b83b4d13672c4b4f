"""Checkpoints: the commit point. Model, optimizer, random states and ledger are on disk together, or not at all.

Layout: `<run>/global_step_N/actor` and, where there is one, `critic` (the backend's own format), `ledger.json` and
`manifest.json` (size and SHA-256 of every other file). `actor/huggingface` holds configuration and tokenizer, and the
weights where they were asked for. The file `latest_checkpointed_iteration.txt` names the newest, for people and for
tools that know veRL; it decides nothing.

A checkpoint is in force unless a later incarnation of the trainer went on from an earlier step: what a superseded
trainer has committed belongs to no lineage, and is never resumed from. Where its step is committed anew it goes to
`superseded/`, and stays there until somebody prunes it.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import structlog

from schemas.state import Resumed
from schemas.weights import FileDigest
from services.inference.weights import digest
from services.runtime.durable import committed, flush, flush_entry, is_of_full_disk, write_file
from services.trainer.ledger import Ledger

log = structlog.get_logger()

LEDGER_FILE = "ledger.json"
MANIFEST_FILE = "manifest.json"
LATEST_FILE = "latest_checkpointed_iteration.txt"
HUGGING_FACE = Path("actor", "huggingface")
SUPERSEDED = "superseded"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "fake_weights.json")
_STEP = re.compile(r"^global_step_(\d+)$")
_ASIDE = re.compile(r"^global_step_(\d+)\.")
_LEFT = re.compile(r"^\.global_step_\d+\.")

Write = Callable[[Path], None]
"""Fills a directory."""


class CannotSave(Exception):
    """The disk is full. All checkpoints are as they were."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    step: int
    directory: Path

    @property
    def has_weights(self) -> bool:
        """Whether the policy's weights are there in Hugging Face format too: all of them, as the manifest says."""
        if not self.has_manifest:
            return any(_is_weights(path) for path in (self.directory / HUGGING_FACE).glob("*"))
        return any(_is_weights(Path(name)) for name in self.manifest())

    @property
    def has_manifest(self) -> bool:
        """Whether anything can be said about damage. Every checkpoint is committed with one; one of the first version
        of this program, or of veRL itself, has none."""
        return (self.directory / MANIFEST_FILE).is_file()

    @property
    def models(self) -> tuple[str, ...]:
        """Which were trained."""
        return tuple(name for name in ("actor", "critic") if (self.directory / name).is_dir())

    @property
    def ranks(self) -> int | None:
        """How many have written the model; None where the backend has no ranks."""
        path = self.directory / "actor" / "fsdp_config.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["world_size"]) if path.is_file() else None

    def ledger(self) -> Ledger:
        return Ledger.from_json((self.directory / LEDGER_FILE).read_text(encoding="utf-8"))

    def manifest(self) -> dict[str, FileDigest]:
        """What each file must be, by its path within the checkpoint; empty where none was written."""
        if not self.has_manifest:
            return {}
        listed = json.loads((self.directory / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        return {name: FileDigest(name=name, **facts) for name, facts in listed.items()}

    def damage(self, is_thorough: bool = False, below: str = "") -> list[str]:
        """What is wrong with the files `below` a directory: absent ones, other sizes and, where thorough, other
        contents."""
        expected = {name: facts for name, facts in self.manifest().items() if name.startswith(below)}
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


def newest_sound(run_dir: Path, lineage: Sequence[Resumed] = ()) -> Checkpoint | None:
    """The newest checkpoint in force whose files are those that were committed. All of them are read."""
    for checkpoint in reversed(checkpoints(run_dir, lineage)):
        started = time.monotonic()
        damage = checkpoint.damage(is_thorough=True)
        if damage:
            log.error("checkpoint_damaged", step=checkpoint.step, damage=damage, todo="going on from an older one")
            continue
        if checkpoint.has_manifest:
            seconds = round(time.monotonic() - started, 1)
            log.info("checkpoint_verified", step=checkpoint.step, files=len(checkpoint.manifest()), seconds=seconds)
        else:
            log.warning("checkpoint_not_verified", step=checkpoint.step, reason=f"it has no {MANIFEST_FILE}")
        return checkpoint
    return None


def commit(run_dir: Path, ledger: Ledger, write: Write, export: Write | None = None) -> Checkpoint:
    """Write a checkpoint of the ledger's step; `write` fills the directory with the backend's part, and `export`, where
    it is given, one with the policy's weights in Hugging Face format.

    Where the step has a checkpoint of this lineage, its model is this one: the ledger is renewed, and exported weights
    are added.

    Raises:
        FileExistsError: another trainer has committed this step meanwhile.
        CannotSave: the disk is full.
    """
    directory = run_dir / f"global_step_{ledger.step}"
    checkpoint = Checkpoint(ledger.step, directory)
    with _full_disk_told(directory):
        if checkpoint in checkpoints(run_dir, ledger.lineage):
            if export is not None and not checkpoint.has_weights:
                _add_weights(checkpoint, ledger.incarnation, export)
            write_file(directory / LEDGER_FILE, ledger.to_json())
        else:
            if directory.exists():
                _set_aside(directory)
            _write(directory, ledger, write, export)
        write_file(run_dir / LATEST_FILE, f"{ledger.step}\n")
    log.info("checkpoint_committed", step=ledger.step, directory=str(directory))
    return checkpoint


def _write(directory: Path, ledger: Ledger, write: Write, export: Write | None) -> None:
    with committed(directory, owner=str(ledger.incarnation), replaces=False) as aside, _full_disk_told(directory):
        write(aside)
        if export is not None:
            (aside / HUGGING_FACE).mkdir(parents=True, exist_ok=True)
            export(aside / HUGGING_FACE)
        names = sorted(str(path.relative_to(aside)) for path in aside.rglob("*") if path.is_file())
        (aside / MANIFEST_FILE).write_text(_manifest(_digests(aside, names)), encoding="utf-8")
        (aside / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8")


def _add_weights(checkpoint: Checkpoint, incarnation: int, export: Write) -> None:
    """Files that no manifest names are none, so what is left of an addition that was interrupted is not read."""
    directory, listed = checkpoint.directory, checkpoint.manifest()
    aside = directory.with_name(f".{directory.name}.{incarnation}.exporting")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    with _full_disk_told(directory):
        export(aside)
        flush(aside)
    place = directory / HUGGING_FACE
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        if _is_weights(HUGGING_FACE / path.name) and str(HUGGING_FACE / path.name) not in listed:
            path.unlink()  # of an addition that was interrupted, perhaps in another number of files
    added = [path for path in sorted(aside.iterdir()) if str(HUGGING_FACE / path.name) not in listed]
    for path in added:
        path.replace(place / path.name)
    flush_entry(place)
    shutil.rmtree(aside)
    found = _digests(directory, [str(HUGGING_FACE / path.name) for path in added])
    write_file(directory / MANIFEST_FILE, _manifest(dict(sorted({**listed, **found}.items()))))


def _set_aside(directory: Path) -> None:
    """Out of the way of one that takes its step."""
    made = Checkpoint(0, directory).ledger().incarnation if (directory / LEDGER_FILE).is_file() else 0
    place = directory.parent / SUPERSEDED
    place.mkdir(exist_ok=True)
    taken = {path.name for path in place.iterdir()}
    names = (f"{directory.name}.{made}{suffix}" for suffix in ("", *(f".{number}" for number in range(2, 10_000))))
    aside = place / next(name for name in names if name not in taken)
    directory.rename(aside)
    log.warning("checkpoint_set_aside", directory=str(aside), reason="a later trainer commits its step anew")


@contextmanager
def _full_disk_told(directory: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, CannotSave) or not is_of_full_disk(error, directory.parent):
            raise
        free = shutil.disk_usage(directory.parent).free
        raise CannotSave(
            f"{directory.name} cannot be written: no space is left below {directory.parent} ({free} bytes are free); "
            "nothing that was there is changed. Make room, by `trinity checkpoints prune` or by smaller "
            "trainer.max_checkpoints_to_keep and synchronizer.keep_versions: the trainer goes on from its newest "
            "checkpoint"
        ) from error


def prune(run_dir: Path, keep: int, lineage: Sequence[Resumed] = ()) -> list[Path]:
    """Remove all but the newest `keep` checkpoints in force; 0 keeps all. Returns what was removed."""
    if keep <= 0:
        return []
    removed = [checkpoint.directory for checkpoint in checkpoints(run_dir, lineage)[:-keep]]
    remove(removed)
    return removed


def fenced(run_dir: Path, lineage: Sequence[Resumed] = ()) -> list[Checkpoint]:
    """Complete checkpoints that are not in force, those that were set aside included."""
    in_force = checkpoints(run_dir, lineage)
    set_aside = [
        Checkpoint(int(match.group(1)), path)
        for path in sorted((run_dir / SUPERSEDED).glob("global_step_*"))
        if (match := _ASIDE.match(path.name))
    ]
    return [checkpoint for checkpoint in committed_checkpoints(run_dir) if checkpoint not in in_force] + set_aside


def leftovers(run_dir: Path) -> list[Path]:
    """What dead trainers have left half written."""
    places = [place for place in (run_dir, run_dir / SUPERSEDED) if place.is_dir()]
    return sorted(path for place in places for path in place.iterdir() if _LEFT.match(path.name))


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


def _is_weights(path: Path) -> bool:
    return path.parent.parts[-2:] == HUGGING_FACE.parts and any(fnmatchcase(path.name, each) for each in _WEIGHTS)


def _manifest(found: dict[str, FileDigest]) -> str:
    files = {name: {"size_bytes": facts.size_bytes, "sha256": facts.sha256} for name, facts in found.items()}
    return json.dumps({"format": "trinity-manifest", "version": 1, "files": files}, indent=1)


def _digests(directory: Path, names: list[str]) -> dict[str, FileDigest]:
    with ThreadPoolExecutor() as threads:  # hashing lets the interpreter's lock go
        return dict(zip(names, threads.map(lambda name: digest(directory / name), names), strict=True))


def _damage(path: Path, expected: FileDigest) -> str | None:
    if not path.is_file():
        return f"{expected.name} is not there"
    size = path.stat().st_size
    return None if size == expected.size_bytes else f"{expected.name} has {size} bytes, not {expected.size_bytes}"
