"""Plug-ins bring workflows and rewards; a faulty one is named with its cause."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.rollout.errors import PluginError
from services.rollout.plugins import load_plugins
from services.rollout.rewards import REWARDS, Answer, reward_named
from services.rollout.workflows import WORKFLOWS, workflow_named

PLUGIN = """\
from services.rollout.rewards import register_reward
from services.rollout.workflows import SimpleWorkflow, register_workflow

@register_reward("shout_reward")
def shout(answer):
    return {"shout": float(answer.response.isupper())}

@register_workflow("shout_workflow")
class ShoutWorkflow(SimpleWorkflow):
    default_reward = "shout_reward"
"""


@pytest.fixture(autouse=True)
def _clean_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    monkeypatch.setattr("services.rollout.rewards.REWARDS", dict(REWARDS))
    monkeypatch.setattr("services.rollout.workflows.WORKFLOWS", dict(WORKFLOWS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("trinity_plugin_"):
            del sys.modules[name]


def test_a_plug_in_brings_a_workflow_and_a_reward(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(PLUGIN)
    (tmp_path / "notes.txt").write_text("not Python")
    assert load_plugins([tmp_path]) == ("trinity_plugin_shout",)
    assert reward_named("shout_reward")(Answer("HI", "")) == {"shout": 1.0}
    assert type(workflow_named("shout_workflow")).__name__ == "ShoutWorkflow"


def test_a_plug_in_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch(exist_ok=False)\n"
    )
    assert load_plugins([tmp_path]) == load_plugins([tmp_path])


def test_a_faulty_plug_in_is_named_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("import no_such_module\n")
    with pytest.raises(PluginError, match=r"faulty.py: ModuleNotFoundError: No module named 'no_such_module'"):
        load_plugins([tmp_path])
    (tmp_path / "faulty.py").write_text("def (:\n")
    with pytest.raises(PluginError, match=r"faulty.py: SyntaxError"):
        load_plugins([tmp_path])


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="absent: is not a directory"):
        load_plugins([tmp_path / "absent"])


def test_two_plug_ins_of_one_name_are_refused(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "same.py").write_text("")
    with pytest.raises(PluginError, match=r"b.same.py: has the same name as .*a.same.py: rename one of them"):
        load_plugins([tmp_path / "a", tmp_path / "b"])
