"""The commands explain themselves, and refuse in words what contradicts itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def _trinity(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def path(config, tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("command", ["replay", "rescore", "import", "export"])
def test_every_command_explains_itself(command: str) -> None:
    found = _trinity(command, "--help")
    assert found.returncode == 0
    assert "Usage" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "--verify", "--live"], "takes no other options than"),
        (["replay", "--follow", "--to-sequence", "9"], "reads on as long as the source lives"),
        (["replay", "--from-step", "4", "--from-sequence", "9"], "--from-step and --from-sequence name the same place"),
        (["replay", "--from-time", "noon"], "'noon' is no time"),
        (["replay"], "run tests/fake has left no store"),
        (["replay", "--verify"], "run tests/fake has left no store"),
        (["replay", "--as", "fake"], "tests/fake is the source itself"),
        (["rescore", "--as", "new", "--reward", "mth_reward"], "did you mean 'math_reward'"),
        (["rescore", "--as", "new", "--reward", "format_reward", "--reward-args", "x"], "is not NAME=VALUE"),
        (["import", "absent.parquet", "--as", "new"], "absent.parquet is not there"),
    ],
)
def test_what_cannot_be_done_is_one_readable_error_and_leaves_nothing(path, tmp_path, arguments, words) -> None:
    found = _trinity(*arguments, "--config", path)
    assert found.returncode == 2, found.stdout + found.stderr
    assert words in " ".join(found.stderr.replace("│", " ").split())
    assert "Traceback" not in found.stderr
    root = tmp_path / "checkpoints"
    assert not root.exists() or [*root.rglob("*")] == [root / "tests"]
