"""`trinity check` prints a configuration, or what follows from it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "configs" / "examples"


def test_the_explanation_takes_the_place_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    file = str(EXAMPLES / "grpo_example.yaml")
    explained, printed = (CliRunner().invoke(app, ["check", file, *more]) for more in (["--explain"], []))
    assert (explained.exit_code, printed.exit_code) == (0, 0)
    assert "trainer, 6 ranks       node 0: GPU 2-7" in explained.output
    assert "repeat_times: 8" not in explained.output
    assert "repeat_times: 8" in printed.output


def test_the_stages_of_a_file_are_explained_one_by_one() -> None:
    found = CliRunner().invoke(app, ["check", str(EXAMPLES / "stages.yaml"), "--explain"])
    assert found.exit_code == 0
    assert found.output.count("optimizer step:") == 2
