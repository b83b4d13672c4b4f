"""Runs of Weights & Biases, online or as files for `wandb sync`.

wandb wants its own steps in order, which those of a run are not: explorers finish batches in any order, and a trainer
that resumes repeats steps. So an entry's place there is its position, and charts have our `step` as their axis. The
server knows the last position of a run, from which a later monitor goes on; files are written anew.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.monitor.config import WandbArguments
from services.monitor.experiment import ROLES, Experiment
from services.monitor.record import Entry, Role

_PATIENCE_S = 30.0
"""For so long a server may take to answer at the start, and to take what is left at the end."""


class WandbRecord:
    """Two runs, `<name>_explorer` and `<name>_trainer`, in the group and the project of the configuration."""

    def __init__(self, experiment: Experiment, arguments: WandbArguments, directory: Path) -> None:
        self._experiment = experiment
        self._arguments = arguments
        self._directory = directory
        self._runs: dict[Role, Any] = {}
        self._held: dict[Role, int] = {}

    @property
    def shown(self) -> str:
        urls = [run.url for run in self._runs.values() if not run.offline]
        return " ".join(urls) or str(self._directory / "wandb")

    def open(self) -> int:
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for role in ROLES:
                self._forget_files(role)
                self._runs[role] = self._begun(role)
                self._held[role] = self._runs[role].starting_step - 1
        except Exception:
            self._runs = {}
            wandb.teardown()  # else it takes the run for one that is in use
            raise
        return max(0, *self._held.values())

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.position > self._held[entry.role]:
                row = {**entry.values, "step": entry.step, "_timestamp": entry.at}
                self._runs[entry.role].log(row, step=entry.position)
                self._held[entry.role] = entry.position

    def close(self) -> None:
        """
        Raises:
            TimeoutError: the server has not taken all; it is in the files.
        """
        import wandb

        runs, self._runs = self._runs, {}
        late: list[TimeoutError] = []
        for run in runs.values():
            try:
                run.finish()
            except TimeoutError as error:
                late.append(error)
        wandb.teardown()  # its own process writes the files, and ends with them
        if late:
            raise late[0]

    def _begun(self, role: Role) -> Any:
        import wandb

        given, experiment = self._arguments, self._experiment
        settings = {
            "api_key": given.api_key,
            "base_url": given.base_url,
            "console": "off",
            "disable_git": True,
            "finish_timeout": _PATIENCE_S,
            "finish_timeout_raises": True,
            "init_timeout": _PATIENCE_S,
            "save_code": False,
            "silent": True,
            "x_disable_stats": True,
        }
        run = wandb.init(
            project=experiment.project,
            entity=given.entity,
            group=experiment.group,
            name=experiment.name_of(role),
            id=experiment.key_of(role),
            tags=[role, *given.tags],
            notes=given.notes,
            config=experiment.config,
            dir=str(self._directory),
            mode=given.mode,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**{key: value for key, value in settings.items() if value is not None}),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step", step_sync=False)
        return run

    def _forget_files(self, role: Role) -> None:
        """What an earlier monitor left for `wandb sync` is in what this one writes."""
        for left in self._directory.glob(f"wandb/offline-run-*-{self._experiment.key_of(role)}"):
            shutil.rmtree(left, ignore_errors=True)
