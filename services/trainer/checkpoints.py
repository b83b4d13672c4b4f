"""Checkpoints: the commit point. Model, optimizer, random states and ledger are on disk together, or not at all.

Layout: `<run>/global_step_N/actor` (the backend's own format) and `<run>/global_step_N/ledger.json`. The file
`latest_checkpointed_iteration.txt` names the newest, for people and for tools that know veRL; it decides nothing.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.runtime.durable import committed, write_file
from services.trainer.ledger import Ledger

log = structlog.get_logger()

LEDGER_FILE = "ledger.json"
LATEST_FILE = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"^global_step_(\d+)$")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    step: int
    directory: Path

    def ledger(self) -> Ledger:
        return Ledger.from_json((self.directory / LEDGER_FILE).read_text(encoding="utf-8"))


def checkpoints(run_dir: Path) -> list[Checkpoint]:
    """All committed checkpoints of a run, the oldest first."""
    if not run_dir.is_dir():
        return []
    found = [
        Checkpoint(int(match.group(1)), path)
        for path in run_dir.iterdir()
        if (match := _STEP.match(path.name)) and (path / LEDGER_FILE).is_file()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def commit(run_dir: Path, ledger: Ledger, write: Callable[[Path], None]) -> Checkpoint:
    """Write a checkpoint of the ledger's step; `write` fills the directory with the backend's part."""
    directory = run_dir / f"global_step_{ledger.step}"
    with committed(directory) as aside:
        write(aside)
        (aside / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8")
    write_file(run_dir / LATEST_FILE, f"{ledger.step}\n")
    log.info("checkpoint_committed", step=ledger.step, directory=str(directory))
    return Checkpoint(ledger.step, directory)


def prune(run_dir: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; 0 keeps all."""
    if keep <= 0:
        return
    for checkpoint in checkpoints(run_dir)[:-keep]:
        shutil.rmtree(checkpoint.directory)
        log.info("checkpoint_pruned", step=checkpoint.step)
