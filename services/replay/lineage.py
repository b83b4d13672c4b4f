"""Which of the versions that lie on disk belong to the run: those of the surviving lineage of trainers. Pure.

A trainer that went on from step S superseded what its predecessors made after S. At S itself both have written the same
weights, and the later one's count.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.state import Resumed

_DIRECTORY = re.compile(r"^version_(\d+)(?:\.(\d+))?$")


@dataclass(frozen=True)
class Written:
    """A complete version on disk: the weights after `step` optimizer steps, written by one incarnation."""

    step: int
    incarnation: int
    directory: Path


def surviving(written: Iterable[Written], lineage: Sequence[Resumed]) -> list[Written]:
    """One version of each step, the lowest step first. `lineage` says at which step each incarnation went on."""
    survivors: dict[int, Written] = {}
    for version in written:
        superseded_at = [each.step for each in lineage if each.incarnation > version.incarnation]
        if any(step < version.step for step in superseded_at):
            continue
        known = survivors.get(version.step)
        if known is None or version.incarnation > known.incarnation:
            survivors[version.step] = version
    return [survivors[step] for step in sorted(survivors)]


def versions_in(root: Path) -> list[Written]:
    """The complete versions in a run's directory of weights."""
    entries = sorted(root.iterdir()) if root.is_dir() else []
    found = [(path, match) for path in entries if (match := _DIRECTORY.match(path.name))]
    return [Written(int(match.group(1)), int(match.group(2) or 1), path) for path, match in found]
