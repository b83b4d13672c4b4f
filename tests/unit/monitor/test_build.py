"""What a record needs is found out before a model is loaded, and said with what to do."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from services.config.tree import RunConfig
from services.launcher.preflight import problems
from services.monitor.build import EXTRAS, RECORDS, directory_of, fault

KEY = "k" * 40


def _config(kind: str, run_mode: str = "both", /, **arguments: Any) -> RunConfig:
    return RunConfig.model_validate({"mode": run_mode, "monitor": {"monitor_type": kind, "monitor_args": arguments}})


def test_every_record_has_an_extra_that_installs_it() -> None:
    assert set(RECORDS) == set(EXTRAS)


def test_two_runs_with_one_cache_dir_have_directories_of_their_own() -> None:
    first, second = (
        RunConfig.model_validate({"project": "maths", "name": name, "monitor": {"cache_dir": "/cache"}})
        for name in ("first", "second")
    )
    assert directory_of(first) == Path("/cache/maths/first/monitor")
    assert directory_of(second) == Path("/cache/maths/second/monitor")


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_whose_library_is_there_has_no_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert fault(_config(kind)) is None


def test_wandb_without_a_key_is_refused_with_what_to_do() -> None:
    words = fault(_config("wandb"))
    assert words == (
        "monitor.monitor_type=wandb: no API key: export WANDB_API_KEY=<your key> (or run `wandb login`); or export "
        "WANDB_MODE=offline to write files that `wandb sync` sends later; or set monitor.monitor_type=tensorboard"
    )


@pytest.mark.parametrize("variable", ["WANDB_API_KEY=" + KEY, "WANDB_MODE=offline", "WANDB_MODE=disabled"])
def test_wandb_takes_a_key_or_a_mode_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert fault(_config("wandb")) is None


@pytest.mark.parametrize("arguments", [{"api_key": KEY}, {"mode": "offline"}])
def test_wandb_takes_a_key_or_a_mode_from_its_arguments(arguments: dict[str, str]) -> None:
    assert fault(_config("wandb", **arguments)) is None


def test_wandb_takes_the_key_that_a_login_has_left_for_its_server(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(f"machine wandb.example.org\n login user\n password {KEY}\n")
    assert fault(_config("wandb", base_url="https://wandb.example.org")) is None
    assert fault(_config("wandb")) is not None


class _Absent(PathFinder):
    """A finder for which MLflow is not installed."""

    @classmethod
    def find_spec(cls, name: str, *arguments: Any) -> Any:
        return None if name == "mlflow" else super().find_spec(name, *arguments)


def test_a_library_that_is_absent_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Absent if each is PathFinder else each for each in sys.meta_path])
    assert fault(_config("mlflow")) == (
        "monitor.monitor_type=mlflow: mlflow is not installed: pip install 'trinity-rft-bus[mlflow]', or set "
        "monitor.monitor_type=tensorboard"
    )


@pytest.mark.parametrize(("mode", "count"), [("both", 1), ("train", 1), ("explore", 0), ("bench", 0), ("serve", 0)])
def test_the_preflight_asks_where_a_monitor_is_started(mode: str, count: int) -> None:
    found = [problem for problem in problems(_config("wandb", mode)) if problem.key == "monitor.monitor_type"]
    assert len(found) == count
