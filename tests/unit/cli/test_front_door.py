"""The front door is quick, teaches, and refuses in words."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml


def _trinity(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from services.cli.main import main\n"
        "sys.argv = ['trinity', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'vllm', 'verl', 'ray', 'transformers', 'datasets', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "command",
    ["run", "explorer", "trainer", "evaluator", "synchronizer", "monitor", "bus", "check", "status", "export", "view"],
)
def test_every_command_explains_itself(command: str) -> None:
    found = _trinity(command, "--help")
    assert found.returncode == 0
    assert "Usage" in found.stdout


def test_check_prints_each_value_with_its_origin(config, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    found = _trinity("check", str(path), "--set", "buffer.total_steps=5")
    assert found.returncode == 0, found.stderr
    assert "total_steps: 5" in found.stdout
    assert "override" in found.stdout
    assert "run.yaml:" in found.stdout


def test_all_problems_of_a_configuration_are_told_at_once(config, tmp_path: Path) -> None:
    config["bufer"] = {}
    config["buffer"]["batch_size"] = -1
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    found = _trinity("run", "--config", str(path))
    assert found.returncode == 2
    assert "bufer" in found.stderr
    assert "buffer" in found.stderr
    assert "Traceback" not in found.stderr


def test_what_is_not_available_yet_is_refused_by_run_and_accepted_by_check(config, tmp_path: Path) -> None:
    config["algorithm"]["enable_router_replay"] = True
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert _trinity("check", str(path)).returncode == 0
    found = _trinity("run", "--config", str(path))
    assert found.returncode == 2
    assert "not available yet" in found.stderr


def test_a_taskset_that_is_not_there_is_told_before_anything_starts(config, tmp_path: Path) -> None:
    config["buffer"]["explorer_input"]["taskset"]["path"] = str(tmp_path / "absent.jsonl")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    started = time.monotonic()
    found = _trinity("run", "--config", str(path))
    assert found.returncode == 2
    assert "absent.jsonl" in found.stderr
    assert not (tmp_path / "checkpoints").exists()
    assert time.monotonic() - started < 60
