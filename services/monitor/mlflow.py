"""Runs of MLflow, on a tracking server or in a database file.

A run's tag says up to which position it holds the stream; a later monitor goes on from there. What was recorded just
before the tag could be written is recorded again with the same step and time, which MLflow keeps once.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from services.config.keys import joined, leaves
from services.monitor.config import MlflowArguments
from services.monitor.experiment import ROLES, Experiment
from services.monitor.record import Entry, Role

_KEY, _POSITION = "trinity.run", "trinity.position"
_METRICS_PER_REQUEST = 1000
_PARAMETERS_PER_REQUEST = 100
_LONGEST_VALUE = 500
_NOT_IN_A_NAME = re.compile(r"[^\w\-. /:]")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""A server that is away is tried again by us. What the user has set stays."""


class MlflowRecord:
    """Two runs, `<name>_explorer` and `<name>_trainer`, in the experiment that is named as the project."""

    def __init__(self, experiment: Experiment, arguments: MlflowArguments, directory: Path) -> None:
        self._experiment = experiment
        self._arguments = arguments
        self._directory = directory
        self._client: Any = None
        self._runs: dict[Role, str] = {}
        self._held: dict[Role, int] = {}

    @property
    def shown(self) -> str:
        return self._arguments.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._directory}/mlflow.db"

    def open(self) -> int:
        self._prepare()
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.shown)
        place = self._place()
        for role in ROLES:
            self._runs[role], self._held[role] = self._found(place, role) or (self._begun(place, role), 0)
        return max(self._held.values())

    def write(self, entries: Sequence[Entry]) -> None:
        for role in ROLES:
            due = [entry for entry in entries if entry.role == role and entry.position > self._held[role]]
            if due:
                self._send(self._runs[role], [metric for entry in due for metric in _metrics(entry)], due[-1].position)
                self._held[role] = due[-1].position

    def close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run)
        self._runs = {}

    def _prepare(self) -> None:
        """Before mlflow is imported: it reads the environment."""
        self._directory.mkdir(parents=True, exist_ok=True)
        given = self._arguments
        own = {"MLFLOW_TRACKING_USERNAME": given.username, "MLFLOW_TRACKING_PASSWORD": given.password}
        os.environ.update({name: value for name, value in own.items() if value})
        artifacts = {"_MLFLOW_SERVER_ARTIFACT_ROOT": str(self._directory / "mlruns")}
        for name, value in (_ENVIRONMENT | artifacts).items():
            os.environ.setdefault(name, value)

    def _place(self) -> str:
        """The id of MLflow's experiment."""
        name = self._experiment.project
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _found(self, place: str, role: Role) -> tuple[str, int] | None:
        """The run that an earlier monitor has begun, and how far it is."""
        wanted = f"tags.`{_KEY}` = '{self._experiment.key_of(role)}'"
        for run in self._client.search_runs([place], wanted, max_results=1):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return run.info.run_id, int(run.data.tags.get(_POSITION, 0))
        return None

    def _begun(self, place: str, role: Role) -> str:
        from mlflow.entities import Param

        experiment = self._experiment
        tags = {_KEY: experiment.key_of(role), "group": experiment.group, "role": role}
        run: str = self._client.create_run(place, run_name=experiment.name_of(role), tags=tags).info.run_id
        parameters = [Param(key, value) for key, value in _parameters(experiment)]
        for start in range(0, len(parameters), _PARAMETERS_PER_REQUEST):
            self._client.log_batch(run, params=parameters[start : start + _PARAMETERS_PER_REQUEST])
        return run

    def _send(self, run: str, metrics: Sequence[tuple[str, float, int, int]], position: int) -> None:
        from mlflow.entities import Metric, RunTag

        for start in range(0, len(metrics), _METRICS_PER_REQUEST):
            portion = [Metric(*metric) for metric in metrics[start : start + _METRICS_PER_REQUEST]]
            self._client.log_batch(run, metrics=portion)
        self._client.log_batch(run, tags=[RunTag(_POSITION, str(position))])


def _metrics(entry: Entry) -> Iterator[tuple[str, float, int, int]]:
    """Name, value, time (ms) and step of each metric."""
    for name, value in entry.values.items():
        yield metric_name(name), value, int(entry.at * 1000), entry.step


def metric_name(name: str) -> str:
    """MLflow takes no `@`: as in Trinity-RFT, `mean@4` is `mean_at_4`. It takes names that are tidy relative paths."""
    return posixpath.normpath(_NOT_IN_A_NAME.sub("_", name.replace("@", "_at_"))).strip("/.") or "_"


def _parameters(experiment: Experiment) -> Iterator[tuple[str, str]]:
    for path, value in leaves(experiment.config):
        if value not in (None, "", [], {}):
            yield _NOT_IN_A_NAME.sub("_", joined(path)), str(value)[:_LONGEST_VALUE]
