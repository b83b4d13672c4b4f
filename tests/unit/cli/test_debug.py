"""`trinity debug`: the command lines of the FAQ, one task on a warm engine or on one of its own, and clear refusals."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.config.errors import ConfigError
from services.debug.warm import ADDRESS_FILE

ECHO = '''
from services.rollout.workflows import register_workflow


@register_workflow("echo_workflow")
class Echo:
    """Ask what the row asks, over HTTP, and be content."""

    async def episode(self, task, policy, position):
        async with policy.recording() as session:
            asked = [{"role": "user", "content": task.row["prompt"]}]
            await session.client.chat.completions.create(model=session.model, messages=asked)
        return session.experiences(position, 0.25, {"calls": float(len(session.calls))})


@register_workflow("broken_workflow")
class Broken:
    async def episode(self, task, policy, position):
        raise KeyError("no such field of mine")
'''


@pytest.fixture
def written(config: dict[str, Any], tmp_path: Path) -> Path:
    """The configuration of a fake run in a file, and beside it a directory of plug-ins."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "echo.py").write_text(ECHO, encoding="utf-8")
    config["explorer"]["rollout_model"]["extra_engine_args"] = {}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _debug(written: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "debug", "--config", str(written), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])


WORKFLOW = "buffer.explorer_input.taskset.default_workflow_type"


def test_the_two_commands_of_the_faq_work_together(written: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.cli", "debug", "--config", str(written), "--module", "inference_model"]
    warm = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert warm.stdout is not None
        lines = [warm.stdout.readline() for _ in range(3)]
        url = re.search(r"OpenAI-compatible at (http://\S+)/v1", "".join(lines))
        assert url, lines
        out, plugins = tmp_path / "deep" / "out.jsonl", tmp_path / "plugins"
        told = ("--module", "workflow", "--output_file", str(out), "--plugin_dir", str(plugins))
        found = _debug(written, *told, "--set", f"{WORKFLOW}=echo_workflow")
        assert found.returncode == 0, found.stderr
        assert f"using the engine at {url.group(1)}" in found.stdout
    finally:
        warm.terminate()
        assert warm.wait(20) == 0
        warm.stdout.close()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(row["position"], row["reward"], row["metrics"]) for row in rows] == [
        (position, 0.25, {"calls": 1.0}) for position in range(4)
    ]
    assert {row["prompt_text"] for row in rows} == {"user: 0+0=\nassistant: "}
    assert not list((tmp_path / "checkpoints").rglob(ADDRESS_FILE)), "the address goes with the engine"


def test_without_a_warm_engine_one_is_started_and_html_is_written(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    found = _debug(written, "-m", "workflow", "--output-file", str(out), "--row", "3")
    assert found.returncode == 0, found.stderr
    assert "starting none" in found.stdout
    assert "3+3=" in out.read_text(encoding="utf-8")
    assert "task sums/0/3, workflow exact_match_workflow: 4 experiences, 24 tokens to learn from" in found.stdout


def test_a_workflow_that_fails_shows_its_own_traceback(written: Path, tmp_path: Path) -> None:
    plugins = str(tmp_path / "plugins")
    found = _debug(written, "-m", "workflow", "--plugin-dir", plugins, "-s", f"{WORKFLOW}=broken_workflow")
    assert found.returncode == 1
    assert 'raise KeyError("no such field of mine")' in found.stderr
    assert found.stderr.rstrip().endswith(
        "error: task sums/0/0, position 0: failed after 1 try: KeyError: 'no such field of mine'"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--module", "viewer"), "`trinity view` shows the experiences"),
        (("--module", "workflow", "--row", "99"), "taskset 'sums': no row 99: it has 32, from 0"),
        (("--module", "workflow", "--set", f"{WORKFLOW}=exact_mach_workflow"), "did you mean 'exact_match_workflow'"),
        (("--module", "workflow", "--plugin_dir", "/no/such/place"), "/no/such/place"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_what_to_do(written: Path, arguments: tuple[str, ...], words: str) -> None:
    found = CliRunner().invoke(app, ["debug", "--config", str(written), *arguments])
    said = re.sub(r"[│\s]+", " ", found.output + str(found.exception))
    assert words in said
    assert isinstance(found.exception, ConfigError) or found.exit_code == 2


def test_an_output_directory_is_kept_where_that_is_asked(written: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    found = _debug(written, "-m", "workflow", "--output-dir", str(kept), "--disable-overwrite")
    assert found.returncode == 0, found.stderr
    assert list(kept.iterdir()) == []
    (beside,) = tmp_path.glob("kept_*")
    assert sorted(path.name for path in beside.iterdir()) == ["experiences.html", "experiences.jsonl"]
    assert time.strftime("%Y") in beside.name
