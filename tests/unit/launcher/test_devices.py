"""GPUs are shared out as the seeds' examples say."""

from pathlib import Path

import pytest

from services.config.load import load
from services.launcher.devices import VISIBLE
from services.launcher.plans import plans

EXAMPLES = Path(__file__).parents[3] / "configs" / "examples"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def _visible(name: str) -> dict[str, str]:
    found = plans(load(EXAMPLES / name).config, Path("config.yaml"))
    return {plan.name: plan.environment[VISIBLE] for plan in found if VISIBLE in plan.environment}


def test_the_trainer_has_what_the_explorers_leave() -> None:
    visible = _visible("grpo_example.yaml")
    assert visible["explorer"] == visible["evaluator"] == "0,1"
    assert visible["trainer"] == "2,3,4,5,6,7"


def test_each_engine_of_an_explorer_side_has_its_own() -> None:
    visible = _visible("async_explorer.yaml")
    assert [visible[name] for name in ("explorer", "explorer_1", "explorer_2", "explorer_3")] == ["0", "1", "2", "3"]


def test_without_gpus_nothing_is_said() -> None:
    config = load(EXAMPLES.parent / "quickstart.yaml").config
    assert all(plan.environment == {} for plan in plans(config, Path("config.yaml")))
