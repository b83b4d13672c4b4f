"""What the guide to the configuration says of defaults and of what is not available is what the code does."""

import json
import re
from pathlib import Path

import pytest

from services.config.availability import AVAILABLE, WITHOUT_EFFECT
from services.config.bus import BusConfig
from services.config.derivation import explain
from services.config.keys import get
from services.config.load import load
from services.config.tree import RunConfig
from services.config.verl.keys import SAME
from services.rollout.config import TasksetConfig

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
TRAINER = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| ", re.MULTILINE)


def _section(title: str) -> str:
    return GUIDE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def _defaults() -> list[tuple[str, str]]:
    return ROW.findall(_section("Keys that this project adds"))


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(("key", "default"), _defaults())
def test_a_default_is_the_one_that_is_told(key: str, default: str) -> None:
    name = key.partition(":")[0]
    tree = TasksetConfig().model_dump() | RunConfig().model_dump()
    assert _written(get(tree, name)) == default


def test_the_bus_is_described_whole() -> None:
    told = {key.removeprefix("bus.") for key, _ in _defaults() if key.startswith("bus.")}
    assert told == set(BusConfig.model_fields)


@pytest.mark.parametrize("key", AVAILABLE)
def test_what_is_not_available_is_told(key: str) -> None:
    assert f"{key.rpartition('.')[2]}`" in _section("Not available yet")


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_what_has_no_effect_is_told(key: str) -> None:
    assert f"`{key}`" in _section("Keys without effect")


@pytest.mark.parametrize("key", SAME)
def test_a_key_of_verls_that_is_the_same_as_ours_is_told(key: str) -> None:
    assert f"{key.rpartition('.')[2]}`" in TRAINER


def test_the_explanation_is_the_one_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/someone")
    printed = explain(
        load(ROOT / "configs" / "examples" / "grpo_example.yaml", ["checkpoint_root_dir=/somewhere/checkpoints"])
    )
    assert printed.split("derived keys:")[0].rstrip() in TRAINER
