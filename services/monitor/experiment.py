"""What a tracking server is told of a run: by which names it finds the run again, and its configuration."""

import hashlib
from dataclasses import dataclass
from typing import Any

from schemas.state import RunDeclared
from services.config.secrets import shareable
from services.config.tree import RunConfig
from services.monitor.record import Role

ROLES: tuple[Role, ...] = ("explorer", "trainer")


@dataclass(frozen=True)
class Experiment:
    """One run on the bus, which a tracking server shows as two: `<name>_explorer` and `<name>_trainer`.

    `key` is the same for every monitor of the run, and another for a run of the same name on another bus.
    """

    project: str
    group: str
    name: str
    key: str
    config: dict[str, Any]

    def name_of(self, role: Role) -> str:
        return f"{self.name}_{role}"

    def key_of(self, role: Role) -> str:
        return f"{self.key}-{role}"


def experiment(config: RunConfig, declared: RunDeclared | None) -> Experiment:
    """The experiment of a run, of which the bus says when it was declared."""
    named = f"{config.run_name} {declared.declared_at if declared else ''}"
    key = hashlib.sha256(named.encode()).hexdigest()[:16]
    return Experiment(config.project, config.group or config.name, config.name, key, shareable(config))
