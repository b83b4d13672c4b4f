"""Announced weights on disk: `<run>/weights/version_N`, complete before they are announced.

A resumed trainer writes its versions beside those of its predecessor, as `version_N.<incarnation>`.
"""

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from schemas.weights import WeightsAnnounced, WeightVersion
from services.inference.weights import digest, holds_adapter
from services.runtime.durable import committed

log = structlog.get_logger()


class WeightsDirectory:
    """Writes versions, and removes those that nobody needs any more. `keep` -1 keeps all."""

    def __init__(self, run: str, run_dir: Path, keep: int) -> None:
        self._run = run
        self._root = run_dir / "weights"
        self._keep = keep

    def path(self, weights: WeightVersion) -> Path:
        suffix = "" if weights.incarnation <= 1 else f".{weights.incarnation}"
        return self._root / f"version_{weights.version}{suffix}"

    def write(
        self, weights: WeightVersion, write: Callable[[Path], None], dtype: str, step_ended_at: float
    ) -> WeightsAnnounced:
        """Write one version and say what was written. Nothing is announced here."""
        directory = self.path(weights)
        with committed(directory) as aside:
            write(aside)
        files = tuple(digest(path) for path in sorted(directory.iterdir()) if path.is_file())
        return WeightsAnnounced(
            run=self._run,
            weights=weights,
            uri=str(directory),
            files=files,
            dtype=dtype,
            step_ended_at=step_ended_at,
            announced_at=time.time(),
            is_adapter=holds_adapter(directory),
        )

    def prune(self, newest: WeightVersion, needed: Iterable[int]) -> None:
        """Remove old versions, but the newest `keep` and those that a member has said it still needs."""
        if self._keep < 0 or not self._root.is_dir():
            return
        kept_from = newest.version - max(self._keep, 1)
        wanted = {newest.version, *needed}
        for directory in self._root.glob("version_*"):
            version = int(directory.name.removeprefix("version_").split(".")[0])
            if version <= kept_from and version not in wanted:
                shutil.rmtree(directory)
                log.info("weights_pruned", version=version)
