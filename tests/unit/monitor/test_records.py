"""Every record holds each report once, though the monitor that wrote it died and another began."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.monitor.config import MlflowArguments, WandbArguments
from services.monitor.experiment import Experiment
from services.monitor.mlflow import MlflowRecord, metric_name
from services.monitor.record import Entry
from services.monitor.tensorboard import TensorBoardRecord
from services.monitor.wandb import WandbRecord

TRAINER = [
    {"actor/loss": 0.5, "actor/lr": 1e-3, "step": 1, "_timestamp": 1_700_000_001, "_step": 1 << 16},
    {"actor/loss": 0.375, "step": 1, "_timestamp": 1_700_000_005, "_step": 5 << 16},
]
EXPLORER = [
    {"rollout/reward/mean": 0.25, "step": 2, "_timestamp": 1_700_000_002, "_step": 2 << 16},
    {"rollout/reward/mean": 0.125, "step": 1, "_timestamp": 1_700_000_003, "_step": 3 << 16},
    {"eval/sums/reward/mean@4": 0.75, "step": 0, "_timestamp": 1_700_000_004, "_step": 4 << 16},
]


def test_tensorboard_files_are_written_anew(tmp_path: Path, entries: list[Entry], tensorboard_files: Any) -> None:
    dead = TensorBoardRecord(tmp_path)
    assert dead.open() == 0
    dead.write(entries[:3])
    record = TensorBoardRecord(tmp_path)
    assert record.open() == 0
    record.write(entries)
    record.close()
    curves = tensorboard_files(tmp_path)
    assert curves["trainer", "actor/loss"] == [(1, 0.5), (1, 0.375)]
    assert curves["explorer", "rollout/reward/mean"] == [(2, 0.25), (1, 0.125)]
    assert curves["evaluator", "eval/sums/reward/mean@4"] == [(0, 0.75)]


def _history(records: list[Any]) -> list[dict[str, Any]]:
    rows = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    found = [{item.nested_key[0]: json.loads(item.value_json) for item in row} for row in rows]
    return [{name: value for name, value in row.items() if name != "_runtime"} for row in found]


def test_wandb_writes_two_runs_of_a_group_as_files_and_shows_no_secret(
    tmp_path: Path, told: Experiment, entries: list[Entry], wandb_files: Callable[[Path], dict[str, list[Any]]]
) -> None:
    for held in (3, len(entries)):  # the second monitor reads the stream from its beginning
        record = WandbRecord(told, WandbArguments(mode="offline", tags=["tried"]), tmp_path)
        assert record.open() == 0
        record.write(entries[:held])
        record.close()
    runs = wandb_files(tmp_path)
    assert set(runs) == {"sums_explorer", "sums_trainer"}
    assert _history(runs["sums_trainer"]) == TRAINER
    assert _history(runs["sums_explorer"]) == EXPLORER
    (begun,) = (each.run for each in runs["sums_trainer"] if each.WhichOneof("record_type") == "run")
    assert (begun.project, begun.run_group, list(begun.tags)) == ("proofs", "night", ["trainer", "tried"])
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["monitor"]["monitor_args"] == {"api_key": "***"}
    assert config["buffer"]["explorer_output"]["path"] == "postgresql://me:***@host/db"
    axes = [each.metric.step_metric for each in runs["sums_trainer"] if each.WhichOneof("record_type") == "metric"]
    assert axes == ["", "step"]


def test_wandb_goes_on_where_its_server_says_that_a_run_ends(
    tmp_path: Path, told: Experiment, entries: list[Entry], wandb_server: Any
) -> None:
    arguments = WandbArguments(base_url=wandb_server.url, api_key="k" * 40)
    first = WandbRecord(told, arguments, tmp_path)
    assert first.open() == 0
    first.write(entries[:3])
    first.close()
    second = WandbRecord(told, arguments, tmp_path)
    assert second.open() == 3 << 16
    second.write(entries)
    second.write(entries)
    second.close()
    assert wandb_server.points(told.key_of("trainer")) == TRAINER
    assert wandb_server.points(told.key_of("explorer")) == EXPLORER


def test_wandb_whose_server_was_away_is_opened_again(
    tmp_path: Path, told: Experiment, entries: list[Entry], wandb_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_server.stop()
    record = WandbRecord(told, WandbArguments(base_url=wandb_server.url, api_key="k" * 40), tmp_path)
    with monkeypatch.context() as hurried:
        hurried.setattr("services.monitor.wandb._PATIENCE_S", 1.0)
        with pytest.raises(Exception, match="Failed to get resume status"):
            record.open()
    back = type(wandb_server)(wandb_server.port)
    try:
        assert record.open() == 0
        record.write(entries)
        record.close()
    finally:
        back.stop()
    assert back.points(told.key_of("trainer")) == TRAINER


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a database, whose tables take seconds to make."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def mlflow_curves() -> Callable[[str], dict[str, dict[str, list[tuple[int, float]]]]]:
    """Of each run by its name, the points of each metric by their time."""
    from mlflow.tracking import MlflowClient

    def read(uri: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
        client = MlflowClient(tracking_uri=uri)
        place = client.get_experiment_by_name("proofs").experiment_id
        return {
            run.info.run_name: {
                name: [
                    (point.step, point.value)
                    for point in sorted(
                        client.get_metric_history(run.info.run_id, name), key=lambda each: each.timestamp
                    )
                ]
                for name in run.data.metrics
            }
            for run in client.search_runs([place])
        }

    return read


def test_mlflow_holds_each_point_once_though_it_is_sent_again(
    database: Path, told: Experiment, entries: list[Entry], mlflow_curves: Any
) -> None:
    dead = MlflowRecord(told, MlflowArguments(), database)
    assert dead.open() == 0
    dead.write(entries[:3])
    before = MlflowRecord(told, MlflowArguments(), database)
    assert before.open() == 3 << 16
    before._held = dict.fromkeys(before._held, 0)  # as if it had died before it could say how far it was
    before.write(entries[:4])
    record = MlflowRecord(told, MlflowArguments(), database)
    assert record.open() == 4 << 16
    record.write(entries)
    record.close()
    assert record.shown == f"sqlite:///{database}/mlflow.db"
    assert mlflow_curves(record.shown) == {
        "sums_trainer": {"actor/loss": [(1, 0.5), (1, 0.375)], "actor/lr": [(1, 1e-3)]},
        "sums_explorer": {"rollout/reward/mean": [(2, 0.25), (1, 0.125)], "eval/sums/reward/mean_at_4": [(0, 0.75)]},
    }


def test_mlflow_is_told_the_configuration_and_the_group(database: Path, told: Experiment) -> None:
    from mlflow.tracking import MlflowClient

    record = MlflowRecord(replace(told, project="shown"), MlflowArguments(), database)
    record.open()
    client = MlflowClient(tracking_uri=record.shown)
    place = client.get_experiment_by_name("shown").experiment_id
    runs = {run.data.tags["role"]: run for run in client.search_runs([place])}
    assert runs["trainer"].data.params["monitor.monitor_args.api_key"] == "***"
    assert runs["trainer"].data.params["buffer.explorer_output.path"] == "postgresql://me:***@host/db"
    assert runs["explorer"].data.tags["group"] == "night"
    assert runs["explorer"].info.status == "RUNNING"
    record.close()
    assert {run.info.status for run in client.search_runs([place])} == {"FINISHED"}


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("eval/a/mean@4", "eval/a/mean_at_4"),
        ("rollout/π=3/max", "rollout/π_3/max"),
        ("/a//b/", "a/b"),
        ("../a", "a"),
        ("", "_"),
    ],
)
def test_every_name_becomes_one_that_mlflow_takes(name: str, there: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    assert metric_name(name) == there
    _validate_metric_name(there)


def test_no_tracking_library_is_imported_before_its_record_is_opened() -> None:
    script = "import sys, services.monitor.service as _; sys.exit(bool({'wandb', 'mlflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
